"""Attempts to advance a flow run are counted: see runs/flows/runner.py."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0039_cancelled_imports_known")]

    operations = [
        migrations.AddField(
            model_name="flowrun",
            name="advance_attempts",
            field=models.PositiveSmallIntegerField(db_default=0, default=0),
        ),
    ]
