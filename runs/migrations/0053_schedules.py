"""Schedules over the periodic tasks of django-celery-beat, and what became of their due times."""

from __future__ import annotations

import django.db.models.deletion
import uuid_utils.compat
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [
        ("django_celery_beat", "0019_alter_periodictasks_options"),
        ("projects", "0011_queues_and_places"),
        ("runs", "0052_queues_and_places"),
    ]

    operations = [
        migrations.CreateModel(
            name="Schedule",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid_utils.compat.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("name", models.CharField(max_length=63)),
                ("agent", models.CharField(blank=True, max_length=63)),
                ("flow", models.CharField(blank=True, max_length=63)),
                ("prompt", models.TextField(blank=True)),
                ("inputs", models.JSONField(default=dict)),
                (
                    "overlap",
                    models.CharField(
                        choices=[("skip", "Skip"), ("queue", "Queue"), ("allow", "Allow")], default="skip", max_length=5
                    ),
                ),
                (
                    "catch_up",
                    models.CharField(choices=[("none", "None"), ("last", "Last")], default="none", max_length=4),
                ),
                ("anchor", models.DateTimeField()),
                ("state", models.TextField()),
                ("handled_until", models.DateTimeField()),
                ("created_by", models.CharField(max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                (
                    "periodic_task",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="run_schedule",
                        to="django_celery_beat.periodictask",
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="schedules",
                        to="projects.project",
                    ),
                ),
            ],
            options={"db_table": "schedules"},
        ),
        migrations.AddConstraint(
            "schedule", models.UniqueConstraint(fields=("project", "name"), name="schedule_once")
        ),
        migrations.AddConstraint(
            "schedule",
            models.CheckConstraint(
                condition=(Q(agent="") & ~Q(flow="")) | (~Q(agent="") & Q(flow="")), name="schedule_of_one"
            ),
        ),
        migrations.CreateModel(
            name="ScheduleStart",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid_utils.compat.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("due_at", models.DateTimeField(null=True)),
                ("first_due_at", models.DateTimeField(null=True)),
                ("count", models.PositiveIntegerField(default=1)),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("started", "Started"),
                            ("waiting", "Waiting"),
                            ("skipped", "Skipped"),
                            ("missed", "Missed"),
                            ("failed", "Failed"),
                        ],
                        max_length=7,
                    ),
                ),
                ("reason", models.CharField(blank=True, max_length=64)),
                ("detail", models.CharField(blank=True, max_length=300)),
                ("run_id", models.UUIDField(null=True)),
                ("flow_run_id", models.UUIDField(null=True)),
                ("decided_at", models.DateTimeField()),
                (
                    "schedule",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="starts",
                        to="runs.schedule",
                    ),
                ),
            ],
            options={"db_table": "schedule_starts"},
        ),
        migrations.AddIndex(
            "schedulestart", models.Index(fields=["schedule", "-id"], name="schedule_starts_newest")
        ),
        migrations.AddIndex("schedulestart", models.Index(fields=["decided_at"], name="schedule_starts_oldest")),
        migrations.AddConstraint(
            "schedulestart", models.UniqueConstraint(fields=("schedule", "due_at"), name="schedule_start_once")
        ),
        migrations.AddConstraint(
            "schedulestart",
            models.UniqueConstraint(
                fields=("schedule",), condition=Q(outcome="waiting"), name="schedule_start_waits_once"
            ),
        ),
        migrations.AddConstraint(
            "schedulestart",
            models.CheckConstraint(
                condition=(Q(outcome="started") & (Q(run_id__isnull=False) | Q(flow_run_id__isnull=False)))
                | (~Q(outcome="started") & Q(run_id=None, flow_run_id=None)),
                name="schedule_start_has_run",
            ),
        ),
    ]
