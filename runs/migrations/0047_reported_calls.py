"""The names of reported model calls, and what imported runs are copied from."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("projects", "0001_initial"),
        ("runs", "0046_salvaged_imports"),
    ]

    operations = [
        migrations.CreateModel(
            name="ReportedCall",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=128)),
                ("call", models.UUIDField(db_index=True)),
                ("is_copy", models.BooleanField(default=False)),
                ("is_whole", models.BooleanField(default=False)),
                (
                    "project",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="projects.project",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="runs.agentrun"
                    ),
                ),
            ],
            options={"db_table": "agent_run_reported_calls"},
        ),
        migrations.AddField("turnusage", "call", models.UUIDField(null=True)),
        migrations.AddField("externalrun", "origin_ref", models.TextField(blank=True, db_default="", default="")),
        migrations.AddField("externalrun", "origin_is_parent", models.BooleanField(db_default=False, default=False)),
        migrations.AddField("externalrun", "copied_until", models.PositiveIntegerField(db_default=0, default=0)),
        migrations.AddField(
            "externalrun", "given_title", models.CharField(blank=True, db_default="", default="", max_length=200)
        ),
    ]
