"""Logs, their events, the tombstones of removed runs, and the marker of maintenance."""

from __future__ import annotations

from django.db import migrations, models
from uuid_utils.compat import uuid7


class Migration(migrations.Migration):
    initial = True

    dependencies = [("projects", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="Log",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("last_seq", models.BigIntegerField(default=0)),
                ("epoch", models.IntegerField(default=0)),
                ("last_event_at", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("project", models.ForeignKey(on_delete=models.PROTECT, related_name="logs", to="projects.project")),
                ("node_id", models.CharField(blank=True, db_default="", default="", max_length=128)),
            ],
        ),
        migrations.CreateModel(
            name="Event",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("seq", models.BigIntegerField()),
                ("ref_id", models.UUIDField(null=True)),
                ("event_id", models.CharField(max_length=128, null=True)),
                (
                    "run_kind",
                    models.CharField(choices=[("session", "Session"), ("job", "Job")], default="session", max_length=8),
                ),
                (
                    "phase",
                    models.CharField(
                        choices=[
                            ("queued", "Queued"),
                            ("running", "Running"),
                            ("completed", "Completed"),
                            ("failed", "Failed"),
                            ("stopped", "Stopped"),
                        ],
                        max_length=9,
                    ),
                ),
                ("type", models.CharField(max_length=128)),
                ("ts", models.DateTimeField()),
                ("step", models.IntegerField(null=True)),
                ("node_id", models.CharField(blank=True, default="", max_length=128)),
                ("payload", models.JSONField(default=dict)),
                (
                    "source",
                    models.CharField(
                        choices=[
                            ("worker", "Worker"),
                            ("web", "Web"),
                            ("ingest", "Ingest"),
                            ("import", "Import"),
                            ("policy", "Policy"),
                        ],
                        max_length=6,
                    ),
                ),
                ("epoch", models.IntegerField(null=True)),
                ("late", models.BooleanField(default=False)),
                ("sanitized", models.CharField(blank=True, default="", max_length=32)),
                ("body_sha256", models.BinaryField(max_length=32, null=True)),
                ("created_at", models.DateTimeField()),
                (
                    "log",
                    models.ForeignKey(
                        db_index=False, on_delete=models.PROTECT, related_name="events", to="timeline.log"
                    ),
                ),
            ],
            options={
                "db_table": "agent_run_events",
                "constraints": [
                    models.UniqueConstraint(fields=("log", "seq"), name="event_seq_once"),
                    models.UniqueConstraint(
                        condition=models.Q(("event_id__isnull", False)),
                        fields=("log", "event_id"),
                        name="event_id_once",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Tombstone",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("family", models.UUIDField()),
                ("facts", models.JSONField(default=dict)),
                ("created_at", models.DateTimeField()),
                ("completed_at", models.DateTimeField(null=True)),
                ("reason", models.CharField(max_length=200)),
                ("removed_by", models.CharField(max_length=200)),
                ("removed_at", models.DateTimeField()),
                ("rows", models.JSONField(default=dict)),
                ("finished_at", models.DateTimeField(null=True)),
                (
                    "project",
                    models.ForeignKey(on_delete=models.PROTECT, related_name="tombstones", to="projects.project"),
                ),
            ],
            options={
                "verbose_name": "run deleted by retention",
                "verbose_name_plural": "runs deleted by retention",
                "indexes": [
                    models.Index(
                        condition=models.Q(("finished_at__isnull", True)),
                        fields=["family"],
                        name="tombstone_unfinished",
                    )
                ]
            },
        ),
        migrations.CreateModel(
            name="MaintenanceDoor",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("reason", models.CharField(max_length=200)),
                ("opened_at", models.DateTimeField(auto_now_add=True)),
            ],
        ),
    ]
