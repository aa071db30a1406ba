from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0012_fill_nodes_and_summaries")]

    operations = [
        migrations.AddField(
            model_name="agentruntoolcall",
            name="resolved_by",
            field=models.CharField(max_length=200, null=True),
        ),
        migrations.AddField(
            model_name="agentruntoolcall",
            name="resolved_at",
            field=models.DateTimeField(null=True),
        ),
    ]
