"""Costs of earlier model calls come from where the cost of their run does."""

from __future__ import annotations

from django.db import migrations

FILL = """
UPDATE agent_run_turn_usages
SET cost_source = (SELECT r.cost_source FROM agent_runs r WHERE r.id = agent_run_turn_usages.run_id)
WHERE cost_usd IS NOT NULL
"""


class Migration(migrations.Migration):
    dependencies = [("runs", "0013_cost_source")]

    operations = [migrations.RunSQL(FILL, migrations.RunSQL.noop)]
