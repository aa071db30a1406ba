"""Let workers go over the older events once more: the middle of long texts and the events of flow runs are indexed.

Nothing is deleted meanwhile, so that searches find what they found. Without an index, there is nothing to do.
"""

from __future__ import annotations

from django.db import migrations

OLDER = """INSERT INTO agent_run_search_position (id, event_id, entry_id)
SELECT 2, 0, 0 FROM agent_run_search_position WHERE id = 1 AND event_id > 0"""


class Migration(migrations.Migration):
    dependencies = [("runs", "0032_search_flow_runs")]

    operations = [migrations.RunSQL(OLDER, "DELETE FROM agent_run_search_position WHERE id = 2", elidable=True)]
