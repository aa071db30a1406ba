"""Commits of several runs in one transaction: see runs/conversation/group_commit.py."""

from __future__ import annotations

from django.db import migrations

from agentops.base.database.vendor_sql import VendorSQL

# lock_timeout: a run whose row somebody holds must not hold up the others; its commit is repeated alone.
FUNCTION = """
CREATE FUNCTION runs_commit_group(
  p_runs uuid[], p_epochs int[], p_sources text[], p_rows jsonb[], p_events jsonb[], p_then jsonb[])
RETURNS TABLE (last_seq bigint, followed boolean)
LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$
BEGIN
  FOR i IN 1..cardinality(p_runs) LOOP
    RETURN QUERY
      SELECT c.last_seq, c.followed
        FROM runs_commit(p_runs[i], p_epochs[i], p_sources[i], p_rows[i], p_events[i], p_then[i]) c;
  END LOOP;
END $$;
"""
UNDO = "DROP FUNCTION runs_commit_group(uuid[], int[], text[], jsonb[], jsonb[], jsonb[])"


class Migration(migrations.Migration):
    dependencies = [("runs", "0034_removal_without_scans")]

    operations = [VendorSQL("postgresql", [FUNCTION], [UNDO])]
