"""Invariants as SQL, and how they are checked: for all runs or for one, within a time limit. Read-only.

The SQL of an invariant selects from named subqueries such as `runs` and `events`, which are defined here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import OperationalError, connection, transaction

from runs.models import AgentRun

#: Maximum number of IDs that a violation lists.
MAX_LISTED = 100
#: SQLite checks the time limit after this number of instructions.
_INSTRUCTIONS = 10_000


@dataclass(frozen=True, slots=True)
class Invariant:
    """A statement about the stored rows, and the SQL that selects violations: a run ID and an item of the run."""

    name: str
    #: The statement in words.
    description: str
    #: Empty if the invariant is checked by `invariants.check_message_contents`.
    sql: str = ""
    #: Whether violations are reported, but do not mean that the data is corrupt.
    warning_only: bool = False


#: The subqueries that invariants select from, by name: for all runs or for one, without runs that are being removed.
#: `event_counts` counts the events that refer to a row; counting them for each row would take quadratic time.
_SUBQUERIES = {
    "clock": "AS (SELECT {half_minute_ago} AS half_minute_ago)",
    "removing": "AS (SELECT id FROM timeline_tombstone WHERE finished_at IS NULL)",
    "logs": "AS NOT MATERIALIZED (SELECT * FROM timeline_log{by_id})",
    "runs": """AS NOT MATERIALIZED (SELECT agent_runs.*,
        status IN ('completed', 'failed', 'stopped', 'resumed') AS ended FROM agent_runs{by_id})""",
    "native": "AS NOT MATERIALIZED (SELECT * FROM runs WHERE source = 'native')",
    "external": "AS NOT MATERIALIZED (SELECT * FROM runs WHERE source <> 'native')",
    "events": """AS NOT MATERIALIZED (SELECT log_id AS run_id, seq, event_id, type, ref_id, source, epoch, late,
        node_id, {decision} AS decision, {error_type} AS error_type,
        {reason} AS reason FROM agent_run_events{by_log})""",
    "messages": """AS NOT MATERIALIZED (SELECT id, run_id, position, role, step_number, epoch, rolled_back_at,
        {finish_reason} AS finish_reason FROM agent_run_messages{by_run})""",
    "calls": """AS NOT MATERIALIZED (SELECT id, run_id, message_id, status, effect, idempotency_key, starts,
        step_number, started_at, finished_at, result_message_id,
        output IS NOT NULL OR result_message_id IS NOT NULL AS has_output
        FROM agent_run_tool_calls{by_run})""",
    "usages": "AS NOT MATERIALIZED (SELECT * FROM agent_run_turn_usages{by_run})",
    "checkpoints": "AS NOT MATERIALIZED (SELECT * FROM agent_run_checkpoints{by_run})",
    "attempts": "AS NOT MATERIALIZED (SELECT * FROM agent_run_attempts{by_run})",
    "commands": "AS NOT MATERIALIZED (SELECT * FROM agent_run_commands{by_run})",
    "flow_rows": """AS NOT MATERIALIZED (SELECT flow_runs.*, status IN ('completed', 'failed', 'stopped') AS ended
        FROM flow_runs{by_id})""",
    "visits": "AS NOT MATERIALIZED (SELECT * FROM flow_visits{by_flow})",
    "approvals": "AS NOT MATERIALIZED (SELECT * FROM agent_run_approvals{by_run})",
    "journal": """AS NOT MATERIALIZED (SELECT id, run_id, position, kind, state, epoch, call_id, pieces, finished_at,
        error IS NOT NULL AS has_error, value IS NOT NULL AS has_value FROM agent_run_remote_steps{by_run})""",
    "code_steps": """AS NOT MATERIALIZED (SELECT t.run_id, t.step_number FROM agent_run_tool_calls t
        JOIN runs r ON r.id = t.run_id AND r.code_version IS NOT NULL WHERE t.call_id LIKE 'step:%%')""",
    "journal_pieces": "AS NOT MATERIALIZED (SELECT step_id, run_id FROM agent_run_remote_step_pieces{by_run})",
    "reopenings": """AS (SELECT run_id, MAX(seq) AS seq FROM events
        WHERE type = 'run.phase' AND reason = 'reopened' AND NOT late GROUP BY run_id)""",
    "endings": """AS (SELECT e.run_id, COUNT(*) AS n, MIN(e.type) AS type, MIN(e.seq) AS seq FROM events e
        LEFT JOIN reopenings o ON o.run_id = e.run_id
        WHERE e.type IN ('run.completed', 'run.failed', 'run.stopped', 'run.resumed') AND NOT e.late
            AND e.seq > COALESCE(o.seq, 0) GROUP BY e.run_id)""",
    "event_counts": """AS NOT MATERIALIZED (SELECT run_id, ref_id, type, COUNT(*) AS n FROM events
        WHERE ref_id IS NOT NULL GROUP BY run_id, ref_id, type)""",
    "open_calls": """AS (SELECT run_id, MIN(step_number) AS step FROM calls WHERE status IN ('planned', 'running')
        OR (status = 'unknown' AND result_message_id IS NULL) GROUP BY run_id)""",
}
#: Materialized, because PostgreSQL's planner would expect the LIMIT to be reached early.
_QUERY = "WITH {names}, violations AS MATERIALIZED ({statement}) SELECT * FROM violations LIMIT {limit}"
_IDENTIFIER = re.compile(r"\w+")
_COLUMNS = {"by_id": "id", "by_log": "log_id", "by_run": "run_id", "by_flow": "flow_run_id"}
_HALF_MINUTE_AGO = {
    "postgresql": "now() - interval '30 seconds'",
    "sqlite": "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', '-30 seconds')",
}
#: SQL for a text in an event's payload.
_PAYLOAD_TEXT = {"postgresql": "payload ->> '{}'", "sqlite": "json_extract(payload, '$.{}')"}
#: SQL for the finish reason of a message.
_FINISH_REASON = {"postgresql": "content ->> 'finish_reason'", "sqlite": "json_extract(content, '$.finish_reason')"}
#: The payload fields that invariants use.
_PAYLOAD_FIELDS = ("decision", "error_type", "reason")


class CheckTimedOut(Exception):
    """The time limit of the check has passed."""


class TimeLimit:
    """The time limit of a check, in seconds. None: unlimited."""

    def __init__(self, within_s: float | None) -> None:
        self._until = None if within_s is None else time.monotonic() + within_s

    @property
    def is_limited(self) -> bool:
        return self._until is not None

    def remaining_s(self) -> float:
        """Return the remaining seconds; infinity without a limit. Raises `CheckTimedOut` at 0."""
        seconds = float("inf") if self._until is None else self._until - time.monotonic()
        if seconds <= 0:
            raise CheckTimedOut
        return seconds


def find_violations(sql: str, run_id: UUID | None, limit: TimeLimit) -> list[str]:
    """Return the IDs of the rows that violate an invariant, at most `MAX_LISTED` + 1. Raises `CheckTimedOut`."""
    params: dict[str, Any] = {"cap": settings.AGENTOPS_MAX_TOTAL_STEPS}
    if run_id is not None:
        params["run"] = AgentRun._meta.pk.get_db_prep_value(run_id, connection)
    query = _query_for(sql, connection.vendor, of_one_run=run_id is not None)
    with _cancelling(limit), connection.cursor() as cursor:
        cursor.execute(query, params)
        return ["/".join(_column_text(value) for value in row) for row in cursor.fetchall()]


@cache
def _query_for(sql: str, vendor: str, *, of_one_run: bool) -> str:
    """Return the whole query for the SQL of an invariant."""
    condition = " WHERE {column} NOT IN (SELECT id FROM removing)"
    if of_one_run:
        condition += " AND {column} = %(run)s"
    columns = {name: condition.format(column=column) for name, column in _COLUMNS.items()}
    columns |= {name: _PAYLOAD_TEXT[vendor].format(name) for name in _PAYLOAD_FIELDS}
    columns |= {"half_minute_ago": _HALF_MINUTE_AGO[vendor], "finish_reason": _FINISH_REASON[vendor]}
    names = _names_for(sql).format(**columns)
    return _QUERY.format(names=names, statement=sql, limit=MAX_LISTED + 1)


def _names_for(sql: str) -> str:
    """Return the subqueries that a statement uses, directly or indirectly. Planning all of them would be slow."""
    needed, new = set(), {"removing", *_IDENTIFIER.findall(sql)} & _SUBQUERIES.keys()
    while new:
        needed |= new
        new = {
            identifier for name in new for identifier in _IDENTIFIER.findall(_SUBQUERIES[name])
        } & _SUBQUERIES.keys() - needed
    return ",\n".join(f"{name} {subquery}" for name, subquery in _SUBQUERIES.items() if name in needed)


@contextmanager
def snapshot() -> Iterator[None]:
    """A read-only transaction in which all reads see the same state. It does not block writers.

    Within a transaction of the caller, that transaction's isolation level applies.
    """
    if connection.in_atomic_block:
        yield
    elif connection.vendor == "postgresql":
        with transaction.atomic():
            _execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield
    else:
        # Not atomic(): its BEGIN IMMEDIATE would block writers.
        _execute("BEGIN")
        try:
            yield
        finally:
            _execute("ROLLBACK")


@contextmanager
def _cancelling(limit: TimeLimit) -> Iterator[None]:
    """Have the database cancel statements at the time limit, and raise `CheckTimedOut`. The transaction survives."""
    remaining_s = limit.remaining_s()
    if not limit.is_limited:
        yield
        return
    cancelling = _cancelling_postgres if connection.vendor == "postgresql" else _cancelling_sqlite
    try:
        with cancelling(remaining_s):
            yield
    except OperationalError:
        limit.remaining_s()  # raises CheckTimedOut if the limit was the cause
        raise


@contextmanager
def _cancelling_postgres(remaining_s: float) -> Iterator[None]:
    # A savepoint, because a cancelled statement aborts its transaction.
    with transaction.atomic():
        _execute(f"SET LOCAL statement_timeout = {max(round(remaining_s * 1000), 1)}")
        yield


@contextmanager
def _cancelling_sqlite(remaining_s: float) -> Iterator[None]:
    until = time.monotonic() + remaining_s
    connection.connection.set_progress_handler(lambda: time.monotonic() > until, _INSTRUCTIONS)
    try:
        yield
    finally:
        connection.connection.set_progress_handler(None, 0)


def _execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def _column_text(value: object) -> str:
    """Return a value as text. SQLite stores UUIDs as 32 digits, which become the form of PostgreSQL."""
    if isinstance(value, str) and len(value) == 32:
        try:
            return str(UUID(value))
        except ValueError:
            return value
    return str(value)
