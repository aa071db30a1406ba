"""Earlier runs count their calls without a known cost. A cost that a runner reported is of the whole run."""

from __future__ import annotations

from django.db import migrations

FILL = """
UPDATE agent_runs
SET unpriced_calls = (
    SELECT COUNT(*) FROM agent_run_turn_usages u WHERE u.run_id = agent_runs.id AND u.cost_usd IS NULL)
WHERE (source = 'native' OR cost_source <> 'reported')
    AND EXISTS (SELECT 1 FROM agent_run_turn_usages u WHERE u.run_id = agent_runs.id AND u.cost_usd IS NULL)
"""


class Migration(migrations.Migration):
    dependencies = [("runs", "0041_price_buckets")]

    operations = [migrations.RunSQL(FILL, migrations.RunSQL.noop)]
