"""Add an index of the attempts in which a worker died: the runs that must be tried with care are found by it."""

from __future__ import annotations

from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [("runs", "0056_worker_processes")]

    operations = [
        migrations.AddIndex(
            "attempt",
            models.Index(fields=["run"], name="attempt_deaths", condition=Q(end_reason__in=("died", "died_alone"))),
        ),
    ]
