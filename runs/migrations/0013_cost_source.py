"""Each model call says where its cost comes from, and projects may set prices."""

from __future__ import annotations

from django.db import migrations, models

SOURCES = [("reported", "Reported"), ("computed", "Computed"), ("project", "Project"), ("unknown", "Unknown")]


class Migration(migrations.Migration):
    dependencies = [("runs", "0012_wait_for_children")]

    operations = [
        migrations.AlterField(
            model_name="agentrun",
            name="cost_source",
            field=models.CharField(choices=SOURCES, default="unknown", max_length=8),
        ),
        migrations.AddField(
            model_name="turnusage",
            name="cost_source",
            field=models.CharField(choices=SOURCES, db_default="unknown", default="unknown", max_length=8),
        ),
    ]
