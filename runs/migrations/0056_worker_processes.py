"""Add the table of worker processes."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0055_places"),
    ]

    operations = [
        migrations.CreateModel(
            name="WorkerProcess",
            fields=[
                ("name", models.CharField(max_length=128, primary_key=True, serialize=False)),
                ("host", models.CharField(max_length=64)),
                ("pid", models.PositiveIntegerField()),
                ("queues", models.JSONField(default=list)),
                ("concurrency", models.PositiveIntegerField()),
                ("started_at", models.DateTimeField()),
                ("seen_at", models.DateTimeField()),
            ],
            options={"db_table": "worker_processes"},
        ),
    ]
