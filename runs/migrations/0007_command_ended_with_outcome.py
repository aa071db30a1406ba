"""A command that has ended has an outcome, and no other one has."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0006_fill_command_outcome")]
    operations = [
        migrations.AddConstraint(
            model_name="runcommand",
            constraint=models.CheckConstraint(
                condition=models.Q(("applied_at__isnull", True), ("outcome__isnull", True))
                | models.Q(("applied_at__isnull", False), ("outcome__isnull", False)),
                name="command_ended_with_outcome",
            ),
        ),
    ]
