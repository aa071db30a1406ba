"""On PostgreSQL, the rows of a step lose their foreign keys: see docs/decisions/step-foreign-keys.md.

On SQLite they stay: there they cost little, and removing one copies the table.
"""

from __future__ import annotations

from django.db import migrations

from agentops.base.database.vendor_sql import VendorSQL

#: Table, column, and the table that it refers to.
KEYS = (
    ("agent_run_events", "log_id", "timeline_log"),
    ("agent_run_messages", "run_id", "agent_runs"),
    ("agent_run_tool_calls", "run_id", "agent_runs"),
    ("agent_run_tool_calls", "message_id", "agent_run_messages"),
    ("agent_run_turn_usages", "run_id", "agent_runs"),
    ("agent_run_checkpoints", "run_id", "agent_runs"),
)
# The names of the constraints contain a hash.
DROP = """
DO $migration$
DECLARE
  v_name text;
BEGIN
  FOR v_name IN SELECT c.conname FROM pg_constraint c
      JOIN pg_attribute a ON a.attrelid = c.conrelid AND c.conkey = ARRAY[a.attnum]
    WHERE c.contype = 'f' AND c.conrelid = '{table}'::regclass AND a.attname = '{column}'
  LOOP
    EXECUTE format('ALTER TABLE {table} DROP CONSTRAINT %I', v_name);
  END LOOP;
END $migration$
"""
ADD = (
    "ALTER TABLE {table} ADD CONSTRAINT {table}_{column}_fk FOREIGN KEY ({column}) REFERENCES {target} (id)"
    " DEFERRABLE INITIALLY DEFERRED"
)


def _each(statement: str) -> list[str]:
    return [statement.format(table=table, column=column, target=target) for table, column, target in KEYS]


class Migration(migrations.Migration):
    dependencies = [("runs", "0062_commit_remote_steps"), ("timeline", "0006_shared_texts")]

    operations = [VendorSQL("postgresql", _each(DROP), _each(ADD))]
