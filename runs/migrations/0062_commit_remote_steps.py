"""runs_commit writes steps of remote runs, their outcomes, and the start of a call."""

from __future__ import annotations

from importlib import import_module

from django.db import migrations

from agentops.base.database.vendor_sql import VendorSQL

_BEFORE = import_module("runs.migrations.0043_commit_price_buckets")
BEFORE: str = _BEFORE.changed(_BEFORE.BEFORE)
CHANGES = {
    "  v_fence int;\nBEGIN\n": "  v_fence int;\n  v_step agent_run_remote_steps;\nBEGIN\n",
    "  IF p_rows ? 'usage' THEN\n    PERFORM 1": "  IF p_rows ?| ARRAY['usage', 'step_count'] THEN\n    PERFORM 1",
    "  IF p_rows ? 'messages' THEN\n": """  IF p_rows ? 'step_count' THEN
    UPDATE agent_runs r SET step_count = (p_rows->>'step_count')::int
      WHERE r.id = p_run AND r.lease_epoch = p_epoch AND r.status = 'running';
  END IF;
  IF p_rows ? 'messages' THEN
""",
    "  IF p_rows ? 'commands' THEN\n": """  IF p_rows ? 'started' THEN
    v_call := jsonb_populate_record(NULL::agent_run_tool_calls, p_rows->'started');
    UPDATE agent_run_tool_calls c SET
        status = v_call.status, starts = v_call.starts, started_at = v_call.started_at,
        changed_arguments = coalesce(v_call.changed_arguments, c.changed_arguments)
      WHERE c.id = v_call.id AND c.status = p_rows->'started'->>'believed';
    IF NOT FOUND THEN
      RAISE EXCEPTION 'call % is not % any more', v_call.id, p_rows->'started'->>'believed'
        USING ERRCODE = 'AO412';
    END IF;
  END IF;
  IF p_rows ? 'remote_steps' THEN
    INSERT INTO agent_run_remote_steps
      SELECT * FROM jsonb_populate_recordset(NULL::agent_run_remote_steps, p_rows->'remote_steps');
  END IF;
  IF p_rows ? 'outcome' THEN
    v_step := jsonb_populate_record(NULL::agent_run_remote_steps, p_rows->'outcome');
    UPDATE agent_run_remote_steps s SET
        state = v_step.state, value = v_step.value, codec = v_step.codec, pieces = v_step.pieces,
        error = v_step.error, finished_at = v_step.finished_at, step_number = v_step.step_number
      WHERE s.id = v_step.id;
  END IF;
  IF p_rows ? 'commands' THEN
""",
}


def changed(function: str) -> str:
    """Return the function with CHANGES, each of which has exactly one place in it."""
    for before, after in CHANGES.items():
        if function.count(before) != 1:
            raise ValueError(f"runs_commit has no single {before!r}")
        function = function.replace(before, after)
    return function


class Migration(migrations.Migration):
    dependencies = [("runs", "0061_graph_states")]

    operations = [VendorSQL("postgresql", [changed(BEFORE)], [BEFORE])]
