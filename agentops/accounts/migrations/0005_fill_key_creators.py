from django.db import migrations

CREATED = ("key.created", "key.rotated")


def fill(apps, schema_editor):
    """Copy who created a key from the audit log."""
    ApiKey, AuditEntry = apps.get_model("projects", "ApiKey"), apps.get_model("projects", "AuditEntry")
    rows = AuditEntry.objects.filter(action__in=CREATED, object_type="projects.apikey")
    for key_id, actor in rows.values_list("object_id", "actor").iterator():
        ApiKey.objects.filter(pk=key_id, created_by="").update(created_by=actor)


class Migration(migrations.Migration):

    dependencies = [
        ('projects', '0004_manage_in_product'),
    ]

    operations = [
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
