"""Agents, runs, and the chores of workers."""

from __future__ import annotations

from django.core.validators import RegexValidator
from django.db import migrations, models
from uuid_utils.compat import uuid7


class Migration(migrations.Migration):
    initial = True

    dependencies = [("projects", "0001_initial"), ("timeline", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="Agent",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "slug",
                    models.CharField(
                        max_length=63,
                        validators=[
                            RegexValidator(
                                "\\A[a-z0-9][a-z0-9-]{0,62}\\Z", "Use at most 63 lower-case letters, digits and dashes."
                            )
                        ],
                    ),
                ),
                ("provider", models.CharField(max_length=63)),
                ("model", models.CharField(max_length=200)),
                ("instructions", models.TextField(blank=True, default="")),
                ("tools", models.JSONField(blank=True, default=list)),
                ("max_steps", models.PositiveIntegerField(default=50)),
                ("settings", models.JSONField(blank=True, default=dict)),
                ("policies", models.JSONField(blank=True, default=dict)),
                ("version", models.PositiveIntegerField(default=1)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("project", models.ForeignKey(on_delete=models.CASCADE, related_name="agents", to="projects.project")),
            ],
            options={"constraints": [models.UniqueConstraint(fields=("project", "slug"), name="agent_slug_once")]},
        ),
        migrations.CreateModel(
            name="AgentRun",
            fields=[
                (
                    "log",
                    models.OneToOneField(
                        db_column="id",
                        on_delete=models.PROTECT,
                        primary_key=True,
                        related_name="run",
                        serialize=False,
                        to="timeline.log",
                    ),
                ),
                ("agent_config", models.JSONField(default=dict)),
                ("starts_fresh", models.BooleanField(default=False)),
                ("forked_at_step", models.PositiveIntegerField(null=True)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("queued", "queued"),
                            ("running", "running"),
                            ("waiting", "waiting"),
                            ("paused", "paused"),
                            ("resumed", "resumed"),
                            ("completed", "completed"),
                            ("failed", "failed"),
                            ("stopped", "stopped"),
                        ],
                        default="queued",
                        max_length=9,
                    ),
                ),
                ("status_reason", models.CharField(blank=True, default="", max_length=64)),
                (
                    "run_kind",
                    models.CharField(choices=[("session", "Session"), ("job", "Job")], default="session", max_length=8),
                ),
                (
                    "source",
                    models.CharField(
                        choices=[
                            ("native", "Native"),
                            ("external", "External"),
                            ("import", "Import"),
                            ("otlp", "Otlp"),
                        ],
                        default="native",
                        max_length=8,
                    ),
                ),
                ("external_id", models.TextField(null=True)),
                ("title", models.CharField(blank=True, default="", max_length=200)),
                ("summary", models.TextField(blank=True, default="")),
                ("prompt", models.JSONField(null=True)),
                ("result", models.TextField(blank=True, default="")),
                ("structured_output", models.JSONField(null=True)),
                ("session_id", models.CharField(blank=True, default="", max_length=128)),
                ("step_base", models.PositiveIntegerField(default=0)),
                ("step_count", models.PositiveIntegerField(default=0)),
                ("max_steps", models.PositiveIntegerField(default=50)),
                ("input_tokens", models.BigIntegerField(default=0)),
                ("output_tokens", models.BigIntegerField(default=0)),
                ("cache_read_tokens", models.BigIntegerField(default=0)),
                ("cache_write_tokens", models.BigIntegerField(default=0)),
                ("reasoning_tokens", models.BigIntegerField(default=0)),
                ("cost_usd", models.DecimalField(decimal_places=8, max_digits=16, null=True)),
                (
                    "cost_source",
                    models.CharField(
                        choices=[("reported", "Reported"), ("computed", "Computed"), ("unknown", "Unknown")],
                        default="unknown",
                        max_length=8,
                    ),
                ),
                ("error_type", models.CharField(blank=True, default="", max_length=64)),
                ("error_message", models.TextField(blank=True, default="")),
                ("lease_owner", models.CharField(max_length=128, null=True)),
                ("lease_epoch", models.IntegerField(default=0)),
                ("lease_expires_at", models.DateTimeField(null=True)),
                ("not_before", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField()),
                ("queued_at", models.DateTimeField()),
                ("started_at", models.DateTimeField(null=True)),
                ("completed_at", models.DateTimeField(null=True)),
                ("labels", models.JSONField(blank=True, default=list)),
                (
                    "agent",
                    models.ForeignKey(null=True, on_delete=models.SET_NULL, related_name="runs", to="runs.agent"),
                ),
                (
                    "forked_from",
                    models.ForeignKey(null=True, on_delete=models.PROTECT, related_name="forks", to="runs.agentrun"),
                ),
                (
                    "parent_run",
                    models.ForeignKey(null=True, on_delete=models.PROTECT, related_name="children", to="runs.agentrun"),
                ),
                (
                    "project",
                    models.ForeignKey(
                        db_index=False, on_delete=models.PROTECT, related_name="runs", to="projects.project"
                    ),
                ),
                (
                    "resumed_from",
                    models.OneToOneField(
                        null=True, on_delete=models.PROTECT, related_name="resumed_as", to="runs.agentrun"
                    ),
                ),
                ("root_run", models.ForeignKey(on_delete=models.PROTECT, related_name="lineage", to="runs.agentrun")),
                ("held_at", models.DateTimeField(null=True)),
                ("removed_at", models.DateTimeField(null=True)),
            ],
            options={
                "db_table": "agent_runs",
                "indexes": [
                    models.Index(
                        models.F("project"),
                        models.OrderBy(models.F("created_at"), descending=True),
                        models.OrderBy(models.F("log"), descending=True),
                        name="run_list",
                    ),
                    models.Index(
                        models.F("project"),
                        models.F("status"),
                        models.OrderBy(models.F("created_at"), descending=True),
                        name="run_list_by_status",
                    ),
                    models.Index(
                        models.F("project"),
                        models.F("source"),
                        models.OrderBy(models.F("created_at"), descending=True),
                        models.OrderBy(models.F("log"), descending=True),
                        condition=models.Q(("source", "native"), _negated=True),
                        name="run_list_by_source",
                    ),
                    models.Index(
                        condition=models.Q(("completed_at__isnull", False), ("removed_at__isnull", True)),
                        fields=["project", "completed_at", "log"],
                        name="run_retention",
                    ),
                    models.Index(
                        models.F("queued_at"),
                        condition=models.Q(("status__in", ["queued", "running"])),
                        name="run_order",
                    ),
                    models.Index(
                        models.F("not_before"),
                        condition=models.Q(("not_before__isnull", False), ("status", "waiting")),
                        name="run_wait_end",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "status__in",
                                ["queued", "running", "waiting", "paused", "resumed", "completed", "failed", "stopped"],
                            )
                        ),
                        name="run_status_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("completed_at__isnull", False),
                                ("status__in", ["completed", "failed", "resumed", "stopped"]),
                            ),
                            models.Q(
                                models.Q(("status__in", ["completed", "failed", "resumed", "stopped"]), _negated=True),
                                ("completed_at__isnull", True),
                            ),
                            _connector="OR",
                        ),
                        name="run_terminal_has_completed_at",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("lease_owner__isnull", False), ("source", "native"), ("status", "running")),
                            models.Q(
                                ("lease_owner__isnull", True),
                                models.Q(("source", "native"), ("status", "running"), _negated=True),
                            ),
                            _connector="OR",
                        ),
                        name="run_lease_while_running",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("step_count__gte", models.F("step_base"))), name="run_steps_grow"
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("external_id__isnull", False)),
                        fields=("project", "external_id"),
                        name="run_external_id_once",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Chore",
            fields=[
                ("name", models.CharField(max_length=32, primary_key=True, serialize=False)),
                ("taken_at", models.DateTimeField()),
            ],
        ),
    ]
