"""A model call has one identity per project."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0047_reported_calls")]

    operations = [
        migrations.AddConstraint(
            "reportedcall", models.UniqueConstraint(fields=["project", "name"], name="reported_call_once")
        ),
        migrations.AddIndex(
            "turnusage",
            models.Index(fields=["call"], name="turn_usage_call", condition=models.Q(call__isnull=False)),
        ),
        migrations.AddIndex(
            "externalrun",
            models.Index(fields=["origin_ref"], name="external_run_origin", condition=~models.Q(origin_ref="")),
        ),
    ]
