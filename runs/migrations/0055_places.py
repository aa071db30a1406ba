"""Add indexes for the places of agents and projects: the runs that have one, and those that wait for one."""

from __future__ import annotations

from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [
        ("projects", "0011_queues_and_places"),
        ("runs", "0054_runs_of_schedules"),
    ]

    operations = [
        migrations.AddIndex(
            "agentrun",
            models.Index("project", "agent", name="run_places", condition=Q(status="running", source="native")),
        ),
        migrations.AddIndex(
            "agentrun",
            models.Index(
                fields=["project", "priority", "queued_at"],
                name="run_for_place",
                condition=Q(status="queued", source="native"),
            ),
        ),
    ]
