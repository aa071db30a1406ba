"""The schedule of a run and of a flow run. Null for those that exist."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import F, Q


class Migration(migrations.Migration):
    dependencies = [("runs", "0053_schedules")]

    operations = [
        migrations.AddField(
            "agentrun",
            "schedule",
            models.ForeignKey(
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="runs",
                to="runs.schedule",
            ),
        ),
        migrations.AddField(
            "flowrun",
            "schedule",
            models.ForeignKey(
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="flow_runs",
                to="runs.schedule",
            ),
        ),
        migrations.AddIndex(
            "agentrun",
            models.Index(
                "schedule", F("created_at").desc(), name="run_of_schedule", condition=Q(schedule__isnull=False)
            ),
        ),
        migrations.AddIndex(
            "flowrun",
            models.Index(
                "schedule", F("log").desc(), name="flow_run_of_schedule", condition=Q(schedule__isnull=False)
            ),
        ),
    ]
