"""The commits of a step: a turn or a tool result, with all its rows. This is the hottest path.

On PostgreSQL a commit is one call of the SQL function runs_commit; concurrent runs may share the call
(runs/conversation/group_commit.py). The portable form does the same with separate statements, and is used on SQLite.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Any
from uuid import UUID

import orjson
from django.db import connection, models, transaction
from django.db.backends.utils import CursorWrapper

from agentops.base import database_clock
from agentops.base.database.fast_rows import insert
from runs import chaos
from runs.conversation import group_commit
from runs.errors import MoveRefused
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, Checkpoint, RunCommand, TurnUsage
from runs.models.run import CostSource
from runs.providers.price_tiers import MAX_TIER
from timeline import log
from timeline.events.llm import LlmTurnAbandoned
from timeline.log import Entry
from timeline.models import Source

TOKENS = (
    *("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "cache_write_1h_tokens"),
    "reasoning_tokens",
)
#: Abandonment reasons of a model call that mean that its worker was lost.
LOST_WORKER_REASONS = frozenset({"worker_lost"})
#: Columns of a call that its result changes.
RESULT_COLUMNS = (
    *("status", "output", "output_bytes", "output_sha256", "attempts", "duration_ms", "finished_at"),
    "result_message_id",
)
#: The columns of a long output, written separately on PostgreSQL: within the JSON of the other rows the output would be
#: copied and parsed several times.
LONG_OUTPUT_COLUMNS = ("output", "output_bytes", "output_sha256")


@dataclass(frozen=True, kw_only=True)
class Commit:
    """Rows and events that are written together."""

    run_id: UUID
    #: The fencing token; None for a writer without a lease.
    epoch: int | None
    source: Source = Source.WORKER
    events: Sequence[Entry]
    messages: Sequence[AgentRunMessage] = ()
    #: Usage of a turn, also added to the totals of the run.
    usage: TurnUsage | None = None
    calls: Sequence[AgentRunToolCall] = ()
    commands: Sequence[RunCommand] = ()
    checkpoint: Checkpoint | None = None
    #: A call that has ended, and the status that its row must still have.
    finished_call: AgentRunToolCall | None = None
    expected_status: str = ""
    #: The start of the next turn, appended only if the inbox is empty.
    next_turn_start: Entry | None = None


def write(commit: Commit) -> bool:
    """Write a commit. Return whether `next_turn_start` was appended.

    Raise `LeaseLost`, and write nothing, if the run was taken over; `MoveRefused` if a call has changed.
    """
    if connection.vendor != "postgresql":
        return _write_portable(commit)
    call = commit.finished_call
    if call is None or call.output_bytes is None:
        return _write_postgres(commit)
    with transaction.atomic():
        followed = _write_postgres(commit)
        AgentRunToolCall.objects.filter(pk=call.pk).update(
            **{name: getattr(call, name) for name in LONG_OUTPUT_COLUMNS}
        )
    return followed


def _write_postgres(commit: Commit) -> bool:
    rows: dict[str, Any] = {
        "messages": [_document(row) for row in commit.messages],
        "usage": _document(commit.usage) if commit.usage else None,
        "calls": [_document(row) for row in commit.calls],
        "commands": [_document(row) for row in commit.commands],
        "checkpoint": _document(commit.checkpoint) if commit.checkpoint else None,
        "finished": _finished_document(commit.finished_call, commit.expected_status) if commit.finished_call else None,
    }
    arguments = group_commit.CommitArguments(
        commit.run_id,
        commit.epoch,
        commit.source.value,
        _dumps({name: value for name, value in rows.items() if value}),
        log.document(commit.run_id, commit.events),
        log.document(commit.run_id, [commit.next_turn_start]) if commit.next_turn_start else None,
    )
    chaos.point("turn.in_transaction" if commit.usage else "result.in_transaction")
    # A transaction of the caller belongs to the caller's thread.
    commit_rows = group_commit.commit_alone if connection.in_atomic_block else group_commit.GROUP.commit
    with log.convert_errors():
        committed = commit_rows(arguments)
    log.announce(commit.run_id, committed.last_seq)
    return committed.followed


def _write_portable(commit: Commit) -> bool:
    with transaction.atomic(), connection.cursor() as cursor:
        if commit.epoch is not None:
            # First, so that a worker that lost its lease gets LeaseLost and not a conflict of positions.
            log.require_epoch(commit.run_id, commit.epoch)
        if commit.usage is not None and commit.epoch is not None:
            _count(commit.usage, commit.epoch, step_count=commit.usage.step_number)
            insert(cursor, [commit.usage])
        insert(cursor, commit.messages)
        insert(cursor, commit.calls)
        insert(cursor, commit.commands)
        if commit.finished_call is not None:
            _finish(commit.finished_call, commit.expected_status)
        if commit.checkpoint is not None:
            insert(cursor, [commit.checkpoint])
        followed = commit.next_turn_start is not None and not _has_commands(cursor, commit.run_id)
        chaos.point("turn.in_transaction" if commit.usage else "result.in_transaction")
        events = [*commit.events, commit.next_turn_start] if followed and commit.next_turn_start else commit.events
        log.append(commit.run_id, events, source=commit.source, epoch=commit.epoch)
    return followed


def count_abandoned(run_id: UUID, epoch: int, entries: Sequence[Entry]) -> None:
    """Count the model calls that `entries` abandon, before the entries are appended in the same transaction.

    This order prevents deadlocks: the run's row is locked before the row of its log.
    """
    for entry in entries:
        payload = entry.payload
        if not isinstance(payload, LlmTurnAbandoned) or not payload.usage:
            continue
        # If the first append had an unclear commit, the repeated append was already counted.
        if entry.event_id is None or not log.has_event(run_id, entry.event_id):
            used = _abandoned_usage(run_id, payload, entry.step or 0)
            _count(used, epoch)
            used.save(force_insert=True)


def count_reported(usages: Sequence[TurnUsage], epoch: int) -> None:
    """Store usage that a program reports in addition to its answers, before the turn, in the same transaction.

    The order matters for locks, as in `count_abandoned`.
    """
    for usage in usages:
        _count(usage, epoch)
        usage.save(force_insert=True)


def _abandoned_usage(run_id: UUID, payload: LlmTurnAbandoned, step: int) -> TurnUsage:
    is_lost = payload.reason in LOST_WORKER_REASONS
    return TurnUsage(
        run_id=run_id, step_number=step, attempt=payload.attempt or 0, model=(payload.model or "")[:200],
        tier=(payload.tier or "")[:MAX_TIER],
        **{name: getattr(payload, name) or 0 for name in TOKENS},
        cost_usd=Decimal(payload.cost_usd) if payload.cost_usd is not None else None,
        cost_source=_source_of(payload).value, usage_complete=False,
        outcome=TurnUsage.Outcome.LOST if is_lost else TurnUsage.Outcome.ABANDONED,
        duration_ms=payload.duration_ms, created_at=database_clock.now(),
    )  # fmt: skip


def _source_of(payload: LlmTurnAbandoned) -> CostSource:
    if payload.cost_usd is None:
        return CostSource.UNKNOWN
    return CostSource(payload.cost_source or CostSource.COMPUTED)


def _count(usage: TurnUsage, epoch: int, *, step_count: int | None = None) -> None:
    """Add usage to the run. No effect if the run was taken over: the append that follows rolls back."""
    changes: dict[str, Any] = {f"{name} = {name} + %s": getattr(usage, name) for name in TOKENS}
    if usage.cost_usd is not None:
        changes["cost_usd = COALESCE(cost_usd, 0) + %s"] = usage.cost_usd
        changes["cost_source = %s"] = usage.cost_source
    else:
        changes["unpriced_calls = unpriced_calls + %s"] = 1
    if step_count is not None:
        changes["step_count = %s"] = step_count
    # The ORM would compile these expressions for every turn, which takes longer than the statement.
    sets = ", ".join(changes)
    key = AgentRun._meta.pk.get_db_prep_value(usage.run_id, connection)
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE agent_runs SET {sets} WHERE id = %s AND lease_epoch = %s AND status = 'running'",  # noqa: S608 - our column names
            [*changes.values(), key, epoch],
        )


def _finish(call: AgentRunToolCall, expected_status: str) -> None:
    rows = AgentRunToolCall.objects.filter(pk=call.pk, status=expected_status)
    if not rows.update(**{name: getattr(call, name) for name in RESULT_COLUMNS}):
        raise MoveRefused(f"call {call.pk} is not {expected_status} any more")


def _has_commands(cursor: CursorWrapper, run_id: UUID) -> bool:
    key = AgentRun._meta.pk.get_db_prep_value(run_id, connection)
    cursor.execute("SELECT 1 FROM agent_run_commands WHERE run_id = %s AND applied_at IS NULL LIMIT 1", [key])
    return cursor.fetchone() is not None


def _finished_document(call: AgentRunToolCall, expected_status: str) -> dict[str, Any]:
    """Return a call that has ended as JSON, without an output that is written separately."""
    document = _document(call) | {"believed": expected_status}
    left_out = LONG_OUTPUT_COLUMNS if call.output_bytes is not None else ()
    return {name: value for name, value in document.items() if name not in left_out}


def _document(row: models.Model) -> dict[str, Any]:
    """Return a row as JSON by column names, as jsonb_populate_record reads it."""
    return {column: value for column, name in _columns(type(row)) if (value := getattr(row, name)) is not None}


@cache
def _columns(model: type[models.Model]) -> list[tuple[str, str]]:
    return [(str(field.column), field.attname) for field in model._meta.concrete_fields]


def _dumps(rows: dict[str, Any]) -> str:
    try:
        return orjson.dumps(rows, default=_json).decode()
    except orjson.JSONEncodeError:  # a number beyond 64 bits
        return json.dumps(rows, default=_json)


def _json(value: object) -> str:
    match value:
        case UUID() | Decimal():
            return str(value)
        case datetime():
            return value.isoformat()
        case bytes() | memoryview():
            return "\\x" + bytes(value).hex()
    raise TypeError(f"{type(value).__name__} cannot be stored in a row")
