"""The append of PostgreSQL: one function, so that a batch costs one round trip (timeline/log.py calls it).

It locks the log's row, refuses a lower epoch, drops known event ids (each statement in a volatile function
takes a fresh snapshot, so ids committed while it waited for the lock are seen), numbers and inserts the rest. An event
without a node of its own is given that of its log.
"""

from __future__ import annotations

from django.db import migrations

from agentops.base.database.vendor_sql import VendorSQL

# enable_*: the cached plan must stay an index scan when the table was empty as the session first planned it.
FUNCTION = """
CREATE FUNCTION timeline_append(
  p_log uuid, p_epoch int, p_source text, p_run_kind text, p_entries jsonb, p_keyed boolean)
RETURNS TABLE (seq bigint, duplicate boolean, stored_sha256 bytea)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
  v_last bigint;
  v_epoch int;
  v_node text;
BEGIN
  SELECT l.last_seq, l.epoch, l.node_id INTO v_last, v_epoch, v_node FROM timeline_log l WHERE l.id = p_log FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'no log %', p_log USING ERRCODE = 'AO404';
  END IF;
  IF p_epoch < v_epoch THEN
    RAISE EXCEPTION 'epoch % of log % was superseded by %', p_epoch, p_log, v_epoch USING ERRCODE = 'AO409';
  END IF;

  -- No entry has an id of its sender's: all are new.
  IF NOT p_keyed THEN
    UPDATE timeline_log l SET last_seq = v_last + jsonb_array_length(p_entries), last_event_at = clock_timestamp()
     WHERE l.id = p_log;
    RETURN QUERY
    INSERT INTO agent_run_events (log_id, seq, ref_id, event_id, run_kind, phase, type, ts, step, node_id,
        payload, source, epoch, late, sanitized, body_sha256, created_at)
    SELECT p_log, v_last + g.ord, g.ref_id, NULL, p_run_kind, g.phase, g.type,
        coalesce(g.ts, clock_timestamp()), g.step, coalesce(nullif(g.node_id, ''), v_node), g.payload, p_source, p_epoch, g.late,
        g.sanitized, NULL, clock_timestamp()
      FROM ROWS FROM (jsonb_to_recordset(p_entries) AS (phase text, type text, ts timestamptz, step int,
        node_id text, ref_id uuid, payload jsonb, late boolean, sanitized text)) WITH ORDINALITY AS g(
        phase, type, ts, step, node_id, ref_id, payload, late, sanitized, ord)
    RETURNING agent_run_events.seq, false, NULL::bytea;
    RETURN;
  END IF;

  RETURN QUERY
  WITH given AS MATERIALIZED (
    SELECT g.*, k.seq AS known_seq, k.body_sha256 AS known_sha256
      FROM ROWS FROM (jsonb_to_recordset(p_entries) AS (
        event_id text, type text, phase text, ts timestamptz, step int, node_id text, ref_id uuid,
        payload jsonb, late boolean, sanitized text, sha256 text)) WITH ORDINALITY AS g(
        event_id, type, phase, ts, step, node_id, ref_id, payload, late, sanitized, sha256, ord)
      LEFT JOIN LATERAL (
        -- LIMIT keeps this a look-up per id: joined, it could become a walk through the whole log.
        SELECT e.seq, e.body_sha256 FROM agent_run_events e
         WHERE e.log_id = p_log AND e.event_id = g.event_id LIMIT 1) k ON true
  ), fresh AS MATERIALIZED (
    SELECT g.*, v_last + row_number() OVER (ORDER BY g.ord) AS seq FROM given g
     WHERE g.event_id IS NULL
        OR (g.known_seq IS NULL
            AND NOT EXISTS (SELECT 1 FROM given b WHERE b.event_id = g.event_id AND b.ord < g.ord))
  ), counted AS (
    UPDATE timeline_log l
       SET last_seq = v_last + (SELECT count(*) FROM fresh), last_event_at = clock_timestamp()
     WHERE l.id = p_log AND EXISTS (SELECT 1 FROM fresh)
  ), inserted AS (
    INSERT INTO agent_run_events (log_id, seq, ref_id, event_id, run_kind, phase, type, ts, step, node_id,
        payload, source, epoch, late, sanitized, body_sha256, created_at)
    SELECT p_log, f.seq, f.ref_id, f.event_id, p_run_kind, f.phase, f.type,
        coalesce(f.ts, clock_timestamp()), f.step, coalesce(nullif(f.node_id, ''), v_node), f.payload, p_source, p_epoch, f.late,
        f.sanitized, decode(f.sha256, 'hex'), clock_timestamp()
      FROM fresh f
  )
  SELECT coalesce(f.seq, g.known_seq, first.seq), f.seq IS NULL,
         coalesce(g.known_sha256, decode(first.sha256, 'hex'))
    FROM given g
    LEFT JOIN fresh f ON f.ord = g.ord
    LEFT JOIN fresh first ON f.seq IS NULL AND first.event_id = g.event_id
   ORDER BY g.ord;
END $$;
"""
UNDO = "DROP FUNCTION timeline_append(uuid, int, text, text, jsonb, boolean)"


class Migration(migrations.Migration):
    dependencies = [("timeline", "0003_postgres_storage")]

    operations = [VendorSQL("postgresql", [FUNCTION], [UNDO])]
