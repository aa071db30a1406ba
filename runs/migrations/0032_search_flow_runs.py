"""Let entries of the search index belong to logs, so that events of flow runs can be in it.

The IDs of runs are those of their logs, so nothing has to be written. SQLite copies the table, without its triggers and
without the index that Django does not know.
"""

from __future__ import annotations

from importlib import import_module

import django.db.models.deletion
from django.db import migrations, models

from agentops.base.database.vendor_sql import VendorSQL

_TEXTS, _TIMES = (
    import_module(f"runs.migrations.{name}") for name in ("0009_search_index", "0016_search_identifiers_and_times")
)
# Without the full-text table itself, which stays.
CREATE = [*_TEXTS.SQLITE[1:], _TIMES.TIMES]
DROP = [*_TEXTS.SQLITE_UNDO[:-1], "DROP INDEX search_entry_times"]
# What the version before does not know: entries of flow runs, and parts of long texts.
NEWER = "DELETE FROM agent_run_search_entries WHERE key LIKE '%.%' OR run_id IN (SELECT id FROM flow_runs)"


def entry(target: str) -> models.ForeignKey:
    return models.ForeignKey(
        db_column="run_id", db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name="+", to=target
    )


class Migration(migrations.Migration):
    dependencies = [("runs", "0031_flows_that_failed"), ("timeline", "0004_append_function")]

    operations = [
        VendorSQL("sqlite", DROP, CREATE),
        # The column, and its unique constraint, are the same.
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RemoveConstraint("searchentry", "search_entry_once"),
                migrations.AlterField("searchentry", "run", entry("runs.agentrun")),
                migrations.RenameField("searchentry", "run", "log"),
                migrations.AddConstraint(
                    "searchentry", models.UniqueConstraint(fields=["log", "key"], name="search_entry_once")
                ),
            ]
        ),
        migrations.AlterField("searchentry", "log", entry("timeline.log")),
        VendorSQL("sqlite", CREATE, DROP),
        migrations.RunSQL(migrations.RunSQL.noop, NEWER),
    ]
