"""What PostgreSQL alone has of the tables: room for HOT updates, and an index over labels."""

from __future__ import annotations

from django.db import migrations

from agentops.base.database.vendor_sql import VendorSQL

STORAGE = [
    # Room on the pages for the next version of a row that every step updates (HOT).
    "ALTER TABLE agent_runs SET (fillfactor = 50)",
    "ALTER TABLE agent_run_tool_calls SET (fillfactor = 80)",
    # For the filter of the runs list by label.
    "CREATE INDEX run_labels ON agent_runs USING gin (labels jsonb_path_ops)",
]
UNDO = [
    "DROP INDEX run_labels",
    "ALTER TABLE agent_run_tool_calls RESET (fillfactor)",
    "ALTER TABLE agent_runs RESET (fillfactor)",
]


class Migration(migrations.Migration):
    dependencies = [("runs", "0002_records")]

    operations = [VendorSQL("postgresql", STORAGE, UNDO)]
