"""Flows, their versions, their runs, and the visits of nodes; a run knows the flow run that it belongs to."""

from __future__ import annotations

import django.core.validators
import django.db.models.deletion
import uuid_utils.compat
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("projects", "0003_masks_model_input"),
        ("runs", "0024_usage_of_programs"),
        ("timeline", "0004_append_function"),
    ]

    operations = [
        migrations.CreateModel(
            name="FlowVersion",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid_utils.compat.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("number", models.PositiveIntegerField()),
                ("definition", models.JSONField()),
                ("changed", models.JSONField(default=list)),
                ("created_by", models.CharField(blank=True, max_length=200)),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "db_table": "flow_versions",
            },
        ),
        migrations.CreateModel(
            name="FlowVisit",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid_utils.compat.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("key", models.CharField(max_length=100)),
                ("node", models.CharField(max_length=64)),
                ("kind", models.CharField(max_length=8)),
                ("iteration", models.PositiveIntegerField(default=0)),
                ("item", models.PositiveIntegerField(null=True)),
                ("value", models.JSONField(null=True)),
                ("output", models.JSONField(null=True)),
                ("state", models.JSONField(null=True)),
                ("reentry", models.TextField(null=True)),
                ("started_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
            ],
            options={
                "db_table": "flow_visits",
            },
        ),
        migrations.CreateModel(
            name="Flow",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid_utils.compat.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "slug",
                    models.CharField(
                        max_length=63,
                        validators=[
                            django.core.validators.RegexValidator(
                                "\\A[a-z0-9][a-z0-9-]{0,62}\\Z", "Use at most 63 lower-case letters, digits and dashes."
                            )
                        ],
                    ),
                ),
                ("title", models.CharField(blank=True, default="", max_length=200)),
                ("definition", models.JSONField(default=dict)),
                ("version", models.PositiveIntegerField(default=1)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                (
                    "project",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="flows",
                        to="projects.project",
                    ),
                ),
            ],
            options={
                "db_table": "flows",
            },
        ),
        migrations.CreateModel(
            name="FlowRun",
            fields=[
                (
                    "log",
                    models.OneToOneField(
                        db_column="id",
                        on_delete=django.db.models.deletion.PROTECT,
                        primary_key=True,
                        related_name="flow_run",
                        serialize=False,
                        to="timeline.log",
                    ),
                ),
                ("definition", models.JSONField()),
                ("flow_version", models.PositiveIntegerField()),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("queued", "queued"),
                            ("running", "running"),
                            ("waiting", "waiting"),
                            ("paused", "paused"),
                            ("completed", "completed"),
                            ("failed", "failed"),
                            ("stopped", "stopped"),
                        ],
                        default="queued",
                        max_length=9,
                    ),
                ),
                ("status_reason", models.CharField(blank=True, default="", max_length=64)),
                ("snapshot", models.JSONField()),
                ("version", models.PositiveIntegerField(default=0)),
                ("inputs", models.JSONField(default=dict)),
                ("error_type", models.CharField(blank=True, default="", max_length=64)),
                ("error_message", models.TextField(blank=True, default="")),
                ("is_due", models.BooleanField(default=True)),
                ("created_by", models.CharField(blank=True, default="", max_length=200)),
                ("created_at", models.DateTimeField()),
                ("started_at", models.DateTimeField(null=True)),
                ("completed_at", models.DateTimeField(null=True)),
                ("removed_at", models.DateTimeField(null=True)),
                (
                    "flow",
                    models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="runs",
                        to="runs.flow",
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="flow_runs",
                        to="projects.project",
                    ),
                ),
            ],
            options={
                "db_table": "flow_runs",
            },
        ),
        migrations.AddField(
            model_name="agentrun",
            name="flow_run",
            field=models.ForeignKey(
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="agent_runs",
                to="runs.flowrun",
            ),
        ),
        migrations.AddIndex(
            model_name="agentrun",
            index=models.Index(
                models.F("flow_run"), condition=models.Q(("flow_run__isnull", False)), name="run_of_flow_run"
            ),
        ),
        migrations.AddField(
            model_name="flowversion",
            name="flow",
            field=models.ForeignKey(
                db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name="versions", to="runs.flow"
            ),
        ),
        migrations.AddField(
            model_name="flowvisit",
            name="flow_run",
            field=models.ForeignKey(
                db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name="visits", to="runs.flowrun"
            ),
        ),
        migrations.AddField(
            model_name="flowvisit",
            name="session",
            field=models.OneToOneField(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="flow_visit", to="runs.agentrun"
            ),
        ),
        migrations.AddConstraint(
            model_name="flow",
            constraint=models.UniqueConstraint(fields=("project", "slug"), name="flow_slug_once"),
        ),
        migrations.AddIndex(
            model_name="flowrun",
            index=models.Index(
                models.F("project"), models.OrderBy(models.F("log"), descending=True), name="flow_run_list"
            ),
        ),
        migrations.AddIndex(
            model_name="flowrun",
            index=models.Index(
                models.F("flow"), models.OrderBy(models.F("log"), descending=True), name="flow_run_of_flow"
            ),
        ),
        migrations.AddIndex(
            model_name="flowrun",
            index=models.Index(
                models.F("log"),
                condition=models.Q(("status__in", ["queued", "running", "waiting"])),
                name="flow_run_moving",
            ),
        ),
        migrations.AddIndex(
            model_name="flowrun",
            index=models.Index(
                condition=models.Q(("completed_at__isnull", False), ("removed_at__isnull", True)),
                fields=["project", "completed_at", "log"],
                name="flow_run_retention",
            ),
        ),
        migrations.AddConstraint(
            model_name="flowrun",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("status__in", ["queued", "running", "waiting", "paused", "completed", "failed", "stopped"])
                ),
                name="flow_run_status_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="flowrun",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("completed_at__isnull", False), ("status__in", ["completed", "failed", "stopped"])),
                    models.Q(
                        models.Q(("status__in", ["completed", "failed", "stopped"]), _negated=True),
                        ("completed_at__isnull", True),
                    ),
                    _connector="OR",
                ),
                name="flow_run_terminal_has_completed_at",
            ),
        ),
        migrations.AddConstraint(
            model_name="flowversion",
            constraint=models.UniqueConstraint(fields=("flow", "number"), name="flow_version_once"),
        ),
        migrations.AddIndex(
            model_name="flowvisit",
            index=models.Index(
                models.F("flow_run"), condition=models.Q(("ended_at__isnull", True)), name="flow_visit_open"
            ),
        ),
        migrations.AddConstraint(
            model_name="flowvisit",
            constraint=models.UniqueConstraint(fields=("flow_run", "key"), name="flow_visit_once"),
        ),
    ]
