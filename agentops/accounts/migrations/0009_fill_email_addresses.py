from django.db import migrations

BATCH = 1000


def fill(apps, schema_editor):
    """Note the address of each user as not verified: nothing proves that it is theirs."""
    User, EmailAddress = apps.get_model("auth", "User"), apps.get_model("projects", "EmailAddress")
    people = User.objects.exclude(email="").filter(email_address=None).values_list("pk", "email")
    batch = []
    for pk, email in people.iterator(chunk_size=BATCH):
        batch.append(EmailAddress(user_id=pk, email=email.lower()))
        if len(batch) == BATCH:
            EmailAddress.objects.bulk_create(batch)
            batch.clear()
    EmailAddress.objects.bulk_create(batch)


class Migration(migrations.Migration):

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
        ('projects', '0008_email_addresses'),
    ]

    operations = [
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
