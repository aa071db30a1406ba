"""Alert rules about sinks that are behind."""

from __future__ import annotations

from django.db import migrations, models
from django.db.models import Q

OF_RUNS = ["run_failed", "run_stalled", "run_waiting", "run_cost", "day_cost", "error_rate"]
KINDS = [*OF_RUNS, "sink_behind"]


class Migration(migrations.Migration):
    dependencies = [("runs", "0036_due_deliveries_of_sinks")]

    operations = [
        migrations.AlterField(
            "alertrule",
            "kind",
            models.CharField(max_length=11, choices=[(kind, kind.replace("_", " ").title()) for kind in KINDS]),
        ),
        migrations.RemoveConstraint("alertrule", "alert_rule_kind_known"),
        migrations.AddConstraint(
            "alertrule", models.CheckConstraint(condition=Q(kind__in=KINDS), name="alert_rule_kind_known")
        ),
    ]
