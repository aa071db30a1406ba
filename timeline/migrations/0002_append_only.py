"""Triggers that refuse UPDATE, DELETE and TRUNCATE of events, on both databases.

Only a marked maintenance transaction (timeline/tombstones.py) passes.
"""

from __future__ import annotations

from django.db import migrations

from agentops.base.database.vendor_sql import VendorSQL

POSTGRES = [
    """
CREATE FUNCTION timeline_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('agentops.maintenance', true) = 'on' THEN
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
  END IF;
  RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'AO403';
END $$
""",
    """
CREATE TRIGGER append_only_rows BEFORE UPDATE OR DELETE ON agent_run_events
  FOR EACH ROW EXECUTE FUNCTION timeline_append_only()
""",
    """
CREATE TRIGGER append_only_table BEFORE TRUNCATE ON agent_run_events
  FOR EACH STATEMENT EXECUTE FUNCTION timeline_append_only()
""",
]
POSTGRES_UNDO = [
    "DROP TRIGGER append_only_table ON agent_run_events",
    "DROP TRIGGER append_only_rows ON agent_run_events",
    "DROP FUNCTION timeline_append_only()",
]
# SQLite has no TRUNCATE.
SQLITE = """
CREATE TRIGGER append_only_{name} BEFORE {op} ON agent_run_events
WHEN NOT EXISTS (SELECT 1 FROM timeline_maintenancedoor)
BEGIN SELECT RAISE(ABORT, 'agent_run_events is append-only: {op} refused'); END
"""
SQLITE_UNDO = "DROP TRIGGER append_only_{name}"
OPERATIONS = ("UPDATE", "DELETE")


class Migration(migrations.Migration):
    dependencies = [("timeline", "0001_initial")]

    operations = [
        VendorSQL("postgresql", POSTGRES, POSTGRES_UNDO),
        VendorSQL(
            "sqlite",
            [SQLITE.format(name=op.lower(), op=op) for op in OPERATIONS],
            [SQLITE_UNDO.format(name=op.lower()) for op in OPERATIONS],
        ),
    ]
