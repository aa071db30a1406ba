"""Each version of an agent is stored, and the newest runs of an agent have an index."""

from __future__ import annotations

import django.db.models.deletion
import uuid_utils.compat
from django.db import migrations, models
from django.db.models import F


class Migration(migrations.Migration):
    dependencies = [("runs", "0019_approvals")]

    operations = [
        migrations.CreateModel(
            name="AgentVersion",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid_utils.compat.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "agent",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="versions",
                        to="runs.agent",
                    ),
                ),
                ("number", models.PositiveIntegerField()),
                ("definition", models.JSONField()),
                ("changed", models.JSONField(default=list)),
                ("created_by", models.CharField(blank=True, max_length=200)),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "db_table": "agent_versions",
                "constraints": [models.UniqueConstraint(fields=("agent", "number"), name="agent_version_once")],
            },
        ),
        migrations.AddIndex(
            model_name="agentrun",
            index=models.Index(F("agent"), F("created_at").desc(), name="run_of_agent"),
        ),
    ]
