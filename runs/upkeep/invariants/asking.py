"""Asking the database: a statement's SQL with the names that it speaks of, for all runs or for one, within a time.

Reads only.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import OperationalError, connection, transaction

from runs.models import AgentRun

#: Offending ids that one violation lists; there may be more.
LISTED = 100
#: SQLite asks whether time is up after so many of its instructions.
_INSTRUCTIONS = 10_000

#: The names that the statements speak of; those of one run only where a run was asked for, and never those of a run
#: that is being removed. `told` counts the events that speak of a row: looked up row by row instead, a long run would
#: cost the square of its length.
_NAMES = {
    "clock": "AS (SELECT {half_minute_ago} AS half_minute_ago)",
    "removing": "AS (SELECT id FROM timeline_tombstone WHERE finished_at IS NULL)",
    "logs": "AS NOT MATERIALIZED (SELECT * FROM timeline_log{by_id})",
    "runs": """AS NOT MATERIALIZED (SELECT agent_runs.*,
        status IN ('completed', 'failed', 'stopped', 'resumed') AS ended FROM agent_runs{by_id})""",
    "native": "AS NOT MATERIALIZED (SELECT * FROM runs WHERE source = 'native')",
    "kept": "AS NOT MATERIALIZED (SELECT * FROM runs WHERE source <> 'native')",
    "events": """AS NOT MATERIALIZED (SELECT log_id AS run_id, seq, event_id, type, ref_id, source, epoch, late,
        node_id, {decision} AS decision, {error_type} AS error_type FROM agent_run_events{by_log})""",
    "messages": """AS NOT MATERIALIZED (SELECT id, run_id, position, role, step_number, epoch, rolled_back_at
        FROM agent_run_messages{by_run})""",
    "calls": """AS NOT MATERIALIZED (SELECT id, run_id, message_id, status, effect, idempotency_key, starts,
        step_number, started_at, finished_at, result_message_id, output IS NOT NULL AS has_output
        FROM agent_run_tool_calls{by_run})""",
    "usages": "AS NOT MATERIALIZED (SELECT * FROM agent_run_turn_usages{by_run})",
    "checkpoints": "AS NOT MATERIALIZED (SELECT * FROM agent_run_checkpoints{by_run})",
    "attempts": "AS NOT MATERIALIZED (SELECT * FROM agent_run_attempts{by_run})",
    "commands": "AS NOT MATERIALIZED (SELECT * FROM agent_run_commands{by_run})",
    "endings": """AS (SELECT run_id, COUNT(*) AS n, MIN(type) AS type, MIN(seq) AS seq FROM events
        WHERE type IN ('run.completed', 'run.failed', 'run.stopped', 'run.resumed') AND NOT late GROUP BY run_id)""",
    "told": """AS NOT MATERIALIZED (SELECT run_id, ref_id, type, COUNT(*) AS n FROM events
        WHERE ref_id IS NOT NULL GROUP BY run_id, ref_id, type)""",
    "open_calls": """AS (SELECT run_id, MIN(step_number) AS step FROM calls WHERE status IN ('planned', 'running')
        OR (status = 'unknown' AND result_message_id IS NULL) GROUP BY run_id)""",
}
#: Materialized because a LIMIT in sight makes Postgres hope for rows that are not there.
_QUESTION = "WITH {names}, found AS MATERIALIZED ({statement}) SELECT * FROM found LIMIT {limit}"
_WORD = re.compile(r"\w+")
_COLUMNS = {"by_id": "id", "by_log": "log_id", "by_run": "run_id"}
_HALF_MINUTE_AGO = {
    "postgresql": "now() - interval '30 seconds'",
    "sqlite": "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', '-30 seconds')",
}
#: A text of an event's payload.
_TEXT_OF = {"postgresql": "payload ->> '{}'", "sqlite": "json_extract(payload, '$.{}')"}
#: Those that statements speak of: somebody's choice, and the type of an error.
_TEXTS = ("decision", "error_type")


class CheckTimedOut(Exception):
    """An answer would have come later than it was wanted."""


class Clock:
    """How long may be looked; without a limit, as long as it takes."""

    def __init__(self, within_s: float | None) -> None:
        self._until = None if within_s is None else time.monotonic() + within_s

    @property
    def limited(self) -> bool:
        return self._until is not None

    def left_s(self) -> float:
        """Raises `CheckTimedOut` where none is."""
        left = float("inf") if self._until is None else self._until - time.monotonic()
        if left <= 0:
            raise CheckTimedOut
        return left


def ask(sql: str, run_id: UUID | None, clock: Clock) -> list[str]:
    """The ids that a statement finds, one more than are listed where there are more."""
    params: dict[str, Any] = {"cap": settings.AGENTOPS_MAX_TOTAL_STEPS}
    seen = " WHERE {column} NOT IN (SELECT id FROM removing)"
    if run_id is not None:
        params["run"] = AgentRun._meta.pk.get_db_prep_value(run_id, connection)
        seen += " AND {column} = %(run)s"
    columns = {name: seen.format(column=column) for name, column in _COLUMNS.items()}
    columns |= {name: _TEXT_OF[connection.vendor].format(name) for name in _TEXTS}
    names = _names_for(sql).format(half_minute_ago=_HALF_MINUTE_AGO[connection.vendor], **columns)
    question = _QUESTION.format(names=names, statement=sql, limit=LISTED + 1)
    with _no_longer_than(clock), connection.cursor() as cursor:
        cursor.execute(question, params)
        return ["/".join(_word(value) for value in row) for row in cursor.fetchall()]


@cache
def _names_for(sql: str) -> str:
    """The names that a statement speaks of, and those that they speak of; to plan the others would cost the most."""
    needed, new = set(), {"removing", *_WORD.findall(sql)} & _NAMES.keys()
    while new:
        needed |= new
        new = {word for name in new for word in _WORD.findall(_NAMES[name])} & _NAMES.keys() - needed
    return ",\n".join(f"{name} {meaning}" for name, meaning in _NAMES.items() if name in needed)


@contextmanager
def snapshot() -> Iterator[None]:
    """All reads of the block see one state. Nothing is written, and nobody who writes waits.

    Inside a transaction of the caller, that one's isolation stays.
    """
    if connection.in_atomic_block:
        yield
    elif connection.vendor == "postgresql":
        with transaction.atomic():
            _execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield
    else:
        # Not atomic(): its BEGIN IMMEDIATE would keep everybody from writing.
        _execute("BEGIN")
        try:
            yield
        finally:
            _execute("ROLLBACK")


@contextmanager
def _no_longer_than(clock: Clock) -> Iterator[None]:
    """The database itself breaks off what takes longer, and `CheckTimedOut` is raised; the transaction goes on."""
    left_s = clock.left_s()
    if not clock.limited:
        yield
        return
    bounded = _bounded_on_postgres if connection.vendor == "postgresql" else _bounded_on_sqlite
    try:
        with bounded(left_s):
            yield
    except OperationalError:
        clock.left_s()  # raises, where it was this
        raise


@contextmanager
def _bounded_on_postgres(left_s: float) -> Iterator[None]:
    # A savepoint: a statement that was broken off spoils its transaction otherwise.
    with transaction.atomic():
        _execute(f"SET LOCAL statement_timeout = {max(round(left_s * 1000), 1)}")
        yield


@contextmanager
def _bounded_on_sqlite(left_s: float) -> Iterator[None]:
    until = time.monotonic() + left_s
    connection.connection.set_progress_handler(lambda: time.monotonic() > until, _INSTRUCTIONS)
    try:
        yield
    finally:
        connection.connection.set_progress_handler(None, 0)


def _execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def _word(value: object) -> str:
    """A column as text; a UUID looks alike on both databases."""
    if isinstance(value, str) and len(value) == 32:
        try:
            return str(UUID(value))
        except ValueError:
            return value
    return str(value)
