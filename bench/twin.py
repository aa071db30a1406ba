"""PostgreSQL's storage limit: a bare append with a counter, to a table with the columns and indexes of the events.

All values are prepared in advance: without validation, redaction and results.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any
from uuid import UUID

import psycopg

from bench.workspace import Workspace

EVENT_TYPE = "x.bench"
# Columns, keys, indexes, and a reference to a log table with a counter, as the product has them.
_TABLES = """
CREATE TABLE twin_log (LIKE timeline_log INCLUDING ALL) WITH (fillfactor = 50);
CREATE TABLE twin_events (LIKE agent_run_events INCLUDING ALL);
ALTER TABLE twin_events ADD FOREIGN KEY (log_id) REFERENCES twin_log (id) DEFERRABLE INITIALLY DEFERRED;
"""
_FUNCTION = """
CREATE FUNCTION twin_append(p_log uuid, p_ids text[], p_payloads text[], p_sha bytea[]) RETURNS SETOF bigint
LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE v_last bigint; v_new int;
BEGIN
  SELECT last_seq INTO v_last FROM twin_log WHERE id = p_log FOR UPDATE;
  RETURN QUERY INSERT INTO twin_events (log_id, seq, event_id, run_kind, phase, type, ts, node_id, payload, source,
      late, sanitized, body_sha256, created_at)
    SELECT p_log, v_last + row_number() OVER (ORDER BY g.ord), g.id, 'session', 'running', 'x.bench', now(), '',
        g.payload::jsonb, 'ingest', false, '', g.sha, now()
      FROM unnest(p_ids, p_payloads, p_sha) WITH ORDINALITY AS g(id, payload, sha, ord)
     WHERE (SELECT e.seq FROM twin_events e WHERE e.log_id = p_log AND e.event_id = g.id LIMIT 1) IS NULL
    RETURNING twin_events.seq;
  GET DIAGNOSTICS v_new = ROW_COUNT;
  UPDATE twin_log SET last_seq = v_last + v_new, last_event_at = now() WHERE id = p_log;
END $$
"""
_APPEND = "SELECT * FROM twin_append(%s, %b::text[], %b::text[], %b::bytea[])"


def create_tables(workspace: Workspace) -> None:
    with workspace.connect() as connection:
        connection.execute(_TABLES)
        connection.execute(_FUNCTION)


def create_logs(workspace: Workspace, number: int) -> list[UUID]:
    """Create logs, each also in the tables of the limit."""
    from agentops.accounts.models import Project
    from timeline.models import Log

    project, _ = Project.objects.get_or_create(slug="bench", defaults={"name": "Bench"})
    logs = [Log.objects.create(project=project).pk for _ in range(number)]
    with workspace.connect() as connection:
        connection.execute("INSERT INTO twin_log SELECT * FROM timeline_log ON CONFLICT DO NOTHING")
    return logs


def append(connection: psycopg.Connection, values: list[Any]) -> None:
    connection.execute(_APPEND, values).fetchall()


def append_values(log_id: UUID, ids: Sequence[str]) -> list[Any]:
    payloads = [json.dumps(body(event_id)) for event_id in ids]
    return [log_id, list(ids), payloads, [digest(event_id) for event_id in ids]]


def entries(ids: Sequence[str]) -> list[Any]:
    """Return the same events as entries of the product's log, as in ingest: with the sender's ID and a hash."""
    from timeline.log import Entry

    return [Entry(body(event_id), EVENT_TYPE, event_id=event_id, body_sha256=digest(event_id)) for event_id in ids]


def body(seed: str) -> dict[str, Any]:
    """Return about 300 bytes, the same for the same seed."""
    return {"tool": "search", "query": (seed * 7)[:200], "tokens": 512, "duration_ms": 17, "ok": True, "model": "m-1"}


def digest(seed: str) -> bytes:
    return sha256(seed.encode()).digest()
