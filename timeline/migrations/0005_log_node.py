from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("timeline", "0004_tombstone")]

    operations = [
        migrations.AddField(
            model_name="log",
            name="node_id",
            field=models.CharField(blank=True, db_default="", default="", max_length=128),
        ),
    ]
