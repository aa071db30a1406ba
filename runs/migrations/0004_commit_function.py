"""The commits of a step on PostgreSQL: one function, one round trip (runs/conversation/writes.py calls it).

Rows travel as JSON by their columns' names and are read back by their tables' types. The log's row is locked
last, by timeline_append, which also is the fence: a worker that was taken over writes nothing.
"""

from __future__ import annotations

from django.db import migrations

from agentops.base.database.vendor_sql import VendorSQL

# enable_seqscan: plans are cached, and the first may have been made on an empty table.
FUNCTION = """
CREATE FUNCTION runs_commit(
  p_run uuid, p_epoch int, p_source text, p_rows jsonb, p_events jsonb, p_then jsonb)
RETURNS TABLE (last_seq bigint, followed boolean)
LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
  v_used agent_run_turn_usages;
  v_call agent_run_tool_calls;
  v_then boolean := false;
  v_fence int;
BEGIN
  -- Run row, then log row: the order in which everyone locks them.
  IF p_rows ? 'usage' THEN
    PERFORM 1 FROM agent_runs r WHERE r.id = p_run FOR NO KEY UPDATE;
  END IF;
  -- The fence comes before the rows: a worker that was taken over must hear that, not of a position that is taken.
  SELECT l.epoch INTO v_fence FROM timeline_log l WHERE l.id = p_run FOR UPDATE;
  IF p_epoch < v_fence THEN
    RAISE EXCEPTION 'epoch % of run % was superseded by %', p_epoch, p_run, v_fence USING ERRCODE = 'AO409';
  END IF;
  IF p_rows ? 'usage' THEN
    v_used := jsonb_populate_record(NULL::agent_run_turn_usages, p_rows->'usage');
    UPDATE agent_runs r SET
        step_count = v_used.step_number,
        input_tokens = r.input_tokens + v_used.input_tokens,
        output_tokens = r.output_tokens + v_used.output_tokens,
        cache_read_tokens = r.cache_read_tokens + v_used.cache_read_tokens,
        cache_write_tokens = r.cache_write_tokens + v_used.cache_write_tokens,
        reasoning_tokens = r.reasoning_tokens + v_used.reasoning_tokens,
        cost_usd = CASE WHEN v_used.cost_usd IS NULL THEN r.cost_usd
                        ELSE coalesce(r.cost_usd, 0) + v_used.cost_usd END,
        cost_source = CASE WHEN v_used.cost_usd IS NULL THEN r.cost_source ELSE 'computed' END
      WHERE r.id = p_run AND r.lease_epoch = p_epoch AND r.status = 'running';
    INSERT INTO agent_run_turn_usages (run_id, step_number, attempt, model, input_tokens, output_tokens,
        cache_read_tokens, cache_write_tokens, reasoning_tokens, cost_usd, duration_ms, created_at,
        cache_saved_usd, outcome, usage_complete)
      SELECT v_used.run_id, v_used.step_number, v_used.attempt, v_used.model, v_used.input_tokens,
        v_used.output_tokens, v_used.cache_read_tokens, v_used.cache_write_tokens, v_used.reasoning_tokens,
        v_used.cost_usd, v_used.duration_ms, v_used.created_at,
        v_used.cache_saved_usd, v_used.outcome, v_used.usage_complete;
  END IF;
  IF p_rows ? 'messages' THEN
    INSERT INTO agent_run_messages
      SELECT * FROM jsonb_populate_recordset(NULL::agent_run_messages, p_rows->'messages');
  END IF;
  IF p_rows ? 'calls' THEN
    INSERT INTO agent_run_tool_calls
      SELECT * FROM jsonb_populate_recordset(NULL::agent_run_tool_calls, p_rows->'calls');
  END IF;
  IF p_rows ? 'commands' THEN
    INSERT INTO agent_run_commands
      SELECT * FROM jsonb_populate_recordset(NULL::agent_run_commands, p_rows->'commands');
  END IF;
  IF p_rows ? 'finished' THEN
    v_call := jsonb_populate_record(NULL::agent_run_tool_calls, p_rows->'finished');
    UPDATE agent_run_tool_calls c SET
        status = v_call.status, output = v_call.output, attempts = v_call.attempts,
        duration_ms = v_call.duration_ms, finished_at = v_call.finished_at,
        result_message_id = v_call.result_message_id
      WHERE c.id = v_call.id AND c.status = p_rows->'finished'->>'believed';
    IF NOT FOUND THEN
      RAISE EXCEPTION 'call % is not % any more', v_call.id, p_rows->'finished'->>'believed'
        USING ERRCODE = 'AO412';
    END IF;
  END IF;
  IF p_rows ? 'checkpoint' THEN
    INSERT INTO agent_run_checkpoints
      SELECT * FROM jsonb_populate_record(NULL::agent_run_checkpoints, p_rows->'checkpoint');
  END IF;
  IF p_then IS NOT NULL THEN
    v_then := NOT EXISTS (
      SELECT 1 FROM agent_run_commands q WHERE q.run_id = p_run AND q.applied_at IS NULL);
  END IF;
  RETURN QUERY
    SELECT max(a.seq), v_then
      FROM timeline_append(p_run, p_epoch, p_source, 'session',
        CASE WHEN v_then THEN p_events || p_then ELSE p_events END, false) a;
END $$;
"""
UNDO = "DROP FUNCTION runs_commit(uuid, int, text, jsonb, jsonb, jsonb)"


class Migration(migrations.Migration):
    dependencies = [("runs", "0003_postgres_storage"), ("timeline", "0004_append_function")]

    operations = [VendorSQL("postgresql", [FUNCTION], [UNDO])]
