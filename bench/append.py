"""Appends to the event log, compared with bare PostgreSQL: one connection, one busy log, and empty tables (G6)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql

from bench.report import Row, heading, mid, rate, show
from bench.workspace import Workspace, vacuum
from bench.writers import EVENT_TYPE, WriteOrder, Writers, bare_append, body, digest, keyed, writing

HOT_GOAL = 0.7
EMPTY_GOAL = 0.8
LOGS = 50
#: Events per turn of the one-connection cases; the other cases take turns of TURN_S seconds.
PER_TURN = {1: 100, 100: 3000}
TURN_S = 0.8

# A table of the same shape: columns, keys, indexes, and a reference to a log table with a counter.
TWIN = """
CREATE TABLE twin_log (LIKE timeline_log INCLUDING ALL) WITH (fillfactor = 50);
CREATE TABLE twin_events (LIKE agent_run_events INCLUDING ALL);
ALTER TABLE twin_events ADD FOREIGN KEY (log_id) REFERENCES twin_log (id) DEFERRABLE INITIALLY DEFERRED;
"""
COLUMNS = ("log_id", "seq", "event_id", "run_kind", "phase", "type", "ts", "node_id", "payload", "source", "late",
           "sanitized", "body_sha256", "created_at")  # fmt: skip
FIXED = {"run_kind": "session", "phase": "running", "type": EVENT_TYPE, "node_id": "", "source": "ingest",
         "late": False, "sanitized": ""}  # fmt: skip
BARE = """
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

Append = Callable[[list[str]], Any]


def run(workspace: Workspace, *, steps: int, quick: bool, with_peers: bool) -> None:
    heading("append: events of ~300 B with event IDs, one commit per batch")
    with workspace.connect() as connection:
        # The cases decide when to collect statistics.
        connection.execute("ALTER TABLE agent_run_events SET (autovacuum_enabled = off)")
        connection.execute(TWIN)
        connection.execute(BARE)
    rounds = 3 if quick else 9
    scale = min(steps / 1000, 1)
    for batch, events in PER_TURN.items():
        one_connection(workspace, batch, rounds, max(int(events * scale), batch))
    with writing() as writers:
        for batch in (1, 100):
            hot_log(workspace, writers, batch, rounds, TURN_S * scale)
        for logs in (1, LOGS):
            emptied_table(workspace, writers, logs, 2 if quick else 4, 2 * TURN_S * scale)


def one_connection(workspace: Workspace, batch: int, rounds: int, events: int) -> None:
    log_id = create_logs(workspace, 1)[0]
    _twins(workspace)
    vacuum(workspace)
    with workspace.connect() as connection:
        ways: dict[str, Append] = {
            "agentops": partial(_agentops, log_id),
            "COPY, no counter": partial(_copy, connection, log_id, count(1_000_000_000)),
            "executemany, no counter": partial(_executemany, connection, log_id, count(2_000_000_000)),
            "bare plpgsql append": partial(bare_append, connection, log_id),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(rounds + 1):
            for name, append in ways.items():
                took = _timed(append, batch, events, f"{name}{turn}")
                if turn:  # The first turn is a warm-up.
                    seconds[name].append(took)
    own_s = seconds.pop("agentops")
    for name, theirs in seconds.items():
        ratio = mid([other / own for own, other in zip(own_s, theirs, strict=True)])
        figures = (rate(events / mid(own_s), "/s"), f"{name}: {rate(events / mid(theirs), '/s')}")
        show(Row(f"1 connection, batches of {batch}", *figures, ratio))


def hot_log(workspace: Workspace, writers: Writers, batch: int, rounds: int, seconds: float) -> None:
    """Compare 8 writers on one log, which wait for its row lock, with 8 writers on 50 logs."""
    logs = create_logs(workspace, LOGS)
    _twins(workspace)
    vacuum(workspace)
    kinds = {(name, bare): WriteOrder(some, batch, seconds, bare=bare)
             for bare in (False, True) for name, some in (("hot", logs[:1]), ("spread", logs))}  # fmt: skip
    rates: dict[tuple[str, bool], list[float]] = {kind: [] for kind in kinds}
    for turn in range(rounds + 1):
        for kind, order in kinds.items():
            measured = writers.rate(order)
            if turn:
                rates[kind].append(measured)
    for bare in (False, True):
        hot, spread = rates["hot", bare], rates["spread", bare]
        ratio = mid([one / many for one, many in zip(hot, spread, strict=True)])
        figures = (f"hot: {rate(mid(hot), '/s')}", f"{LOGS} logs: {rate(mid(spread), '/s')}")
        what = f"8 writers, batches of {batch}{', bare plpgsql' if bare else ''}"
        show(Row(what, *figures, ratio, at_least=None if bare else HOT_GOAL))
    _check_dense(workspace, logs)


def emptied_table(workspace: Workspace, writers: Writers, logs: int, rounds: int, seconds: float) -> None:
    """Measure sessions with query plans for empty tables: after TRUNCATE, and again after ANALYZE."""
    order = WriteOrder(create_logs(workspace, logs), 100, seconds)
    emptied: list[float] = []
    analysed: list[float] = []
    writers.rate(order)
    for _ in range(rounds):
        with workspace.connect() as connection:
            with connection.transaction():
                connection.execute("SET LOCAL agentops.maintenance = 'on'")
                connection.execute("TRUNCATE agent_run_events")
            emptied.append(writers.rate(order))
            connection.execute("ANALYZE agent_run_events")
            analysed.append(writers.rate(order))
    ratio = mid([one / other for one, other in zip(emptied, analysed, strict=True)])
    figures = (f"emptied: {rate(mid(emptied), '/s')}", f"analysed: {rate(mid(analysed), '/s')}")
    show(Row(f"8 writers, {logs} log(s), after TRUNCATE", *figures, ratio, at_least=EMPTY_GOAL))


def create_logs(workspace: Workspace, number: int) -> list[UUID]:
    from agentops.accounts.models import Project
    from timeline.models import Log

    project, _ = Project.objects.get_or_create(slug="bench", defaults={"name": "Bench"})
    return [Log.objects.create(project=project).pk for _ in range(number)]


def _twins(workspace: Workspace) -> None:
    with workspace.connect() as connection:
        connection.execute("INSERT INTO twin_log SELECT * FROM timeline_log ON CONFLICT DO NOTHING")


def _timed(append: Append, batch: int, events: int, salt: str) -> float:
    batches = [[f"{salt}-{turn}-{n}" for n in range(batch)] for turn in range(events // batch)]
    began = time.perf_counter()
    for ids in batches:
        append(ids)
    return time.perf_counter() - began


def _agentops(log_id: UUID, ids: list[str]) -> None:
    from django.db import transaction

    from timeline import log
    from timeline.models import Source

    with transaction.atomic():
        log.append(log_id, keyed(ids), source=Source.INGEST)


def _rows(log_id: UUID, seqs: count[int], ids: Sequence[str]) -> list[tuple[Any, ...]]:
    rows = []
    now = "now"
    for event_id in ids:
        row = FIXED | {
            "log_id": log_id, "seq": next(seqs), "event_id": event_id, "ts": now, "created_at": now,
            "payload": json.dumps(body(event_id)), "body_sha256": digest(event_id),
        }  # fmt: skip
        rows.append(tuple(row[column] for column in COLUMNS))
    return rows


_NAMES = sql.SQL(", ").join(map(sql.Identifier, COLUMNS))
_COPY = sql.SQL("COPY twin_events ({}) FROM STDIN").format(_NAMES)
_INSERT = sql.SQL("INSERT INTO twin_events ({}) VALUES ({})").format(
    _NAMES, sql.SQL(", ").join([sql.Placeholder()] * len(COLUMNS))
)


def _copy(connection: psycopg.Connection, log_id: UUID, seqs: count[int], ids: list[str]) -> None:
    with connection.cursor() as cursor, cursor.copy(_COPY) as copy:
        for row in _rows(log_id, seqs, ids):
            copy.write_row(row)


def _executemany(connection: psycopg.Connection, log_id: UUID, seqs: count[int], ids: list[str]) -> None:
    with connection.transaction(), connection.cursor() as cursor:
        cursor.executemany(_INSERT, _rows(log_id, seqs, ids))


def _check_dense(workspace: Workspace, logs: Sequence[UUID]) -> None:
    with workspace.connect() as connection:
        gap_count = connection.execute(
            "SELECT count(*) FROM (SELECT 1 FROM agent_run_events WHERE log_id = ANY(%s) GROUP BY log_id"
            " HAVING min(seq) <> 1 OR max(seq) <> count(*)) AS gaps",
            [list(logs)],
        ).fetchone()
    if gap_count != (0,):
        raise RuntimeError(f"{gap_count} logs have gaps")
