"""The commits of a step: a model's answer or a tool result, with all its rows. This is the hottest path.

On PostgreSQL a commit is one call of the SQL function runs_commit; concurrent runs may share a call
(runs/conversation/group_commit.py). On SQLite, separate statements do the same.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Any
from uuid import UUID

import orjson
import psycopg
from django.db import DatabaseError, connection, models, transaction
from django.db.backends.utils import CursorWrapper

from agentops.base import database_clock
from agentops.base.database.statements import insert
from runs import chaos
from runs.conversation import group_commit
from runs.errors import MoveRefused
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, Checkpoint, RemoteStep, RunCommand, TurnUsage
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
#: Reasons of an abandoned model call that mean that its worker was lost.
LOST_WORKER_REASONS = frozenset({"worker_lost"})
#: Columns of a call that its result changes.
RESULT_COLUMNS = (
    *("status", "output", "output_bytes", "output_sha256", "attempts", "duration_ms", "finished_at"),
    "result_message_id",
)
#: The columns of a long output. PostgreSQL gets them in a separate statement: within the JSON of the other rows, the
#: output would be copied and parsed several times.
LONG_OUTPUT_COLUMNS = ("output", "output_bytes", "output_sha256")
#: Columns of a call that its start changes, and of a remote step that its outcome changes.
START_COLUMNS = ("status", "starts", "started_at")
OUTCOME_COLUMNS = ("state", "value", "codec", "pieces", "error", "finished_at", "step_number")
#: Characters of the value of a remote step from which it is written separately, as a long output.
LONG_VALUE = 32 * 1024
#: SQLSTATE with which runs_commit refuses a call that has another status than expected.
CALL_CHANGED = "AO412"


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
    #: A call that has ended.
    finished_call: AgentRunToolCall | None = None
    #: A call that begins to run. A commit has only one of the two.
    started_call: AgentRunToolCall | None = None
    #: The status that the row of `finished_call` or `started_call` must still have.
    expected_status: str = ""
    #: The number of the run's last step, if the commit has no usage.
    step_count: int | None = None
    #: New steps of a remote run, and a step whose outcome is stored.
    remote_steps: Sequence[RemoteStep] = ()
    outcome: RemoteStep | None = None
    #: The start of the next turn, appended only if the inbox is empty.
    next_turn_start: Entry | None = None

    @property
    def is_journal_only(self) -> bool:
        """Whether the commit has only new steps of a remote run."""
        return bool(self.remote_steps) and not (self.events or self.outcome)


def write(commit: Commit) -> bool:
    """Write a commit. Returns whether `next_turn_start` was appended.

    Writes nothing and raises `LeaseLost` if the run was taken over, or `MoveRefused` if the call has changed.
    """
    if connection.vendor != "postgresql":
        return _write_portable(commit)
    if not _has_long_rows(commit):
        return _write_postgres(commit)
    with transaction.atomic():
        next_turn_started = _write_postgres(commit)
        _write_long_rows(commit)
    return next_turn_started


def write_together(commits: Sequence[Commit]) -> None:
    """Write the commits of several runs in the caller's transaction. Raises what `write` raises for one of them."""
    if connection.vendor != "postgresql" or len(commits) == 1:
        for commit in commits:
            write(commit)
        return
    arguments = [_arguments(commit) for commit in commits]
    with _convert_errors():
        all_committed = group_commit.commit_together(arguments)
    for commit, committed in zip(commits, all_committed, strict=True):
        _announce(commit, committed)
        if _has_long_rows(commit):
            _write_long_rows(commit)


def _write_postgres(commit: Commit) -> bool:
    """Write a commit with the SQL function, together with other runs' commits if there are any."""
    arguments = _arguments(commit)
    if commit.started_call is None:
        chaos.point("turn.in_transaction" if commit.usage else "result.in_transaction")
    # Within a transaction of the caller, no other thread can commit for this one.
    commit_rows = group_commit.commit_alone if connection.in_atomic_block else group_commit.GROUP.commit
    with _convert_errors():
        committed = commit_rows(arguments)
    _announce(commit, committed)
    return committed.next_turn_started


def _arguments(commit: Commit) -> group_commit.CommitArguments:
    """Return the arguments of the SQL function."""
    started, finished = commit.started_call, commit.finished_call
    rows: dict[str, Any] = {
        "messages": [_document(row) for row in commit.messages],
        "usage": _document(commit.usage) if commit.usage else None,
        "step_count": commit.step_count,
        "calls": [_document(row) for row in commit.calls],
        "commands": [_document(row) for row in commit.commands],
        "checkpoint": _document(commit.checkpoint) if commit.checkpoint else None,
        "finished": _finished_document(commit, finished) if finished else None,
        "started": _started_document(started, commit.expected_status) if started else None,
        "remote_steps": [_document(row) for row in commit.remote_steps],
        "outcome": _outcome_document(commit.outcome) if commit.outcome else None,
    }
    return group_commit.CommitArguments(
        commit.run_id,
        commit.epoch,
        commit.source.value,
        _dumps({name: value for name, value in rows.items() if value}),
        log.document(commit.run_id, commit.events),
        log.document(commit.run_id, [commit.next_turn_start]) if commit.next_turn_start else None,
    )


def _announce(commit: Commit, committed: group_commit.Committed) -> None:
    if committed.last_seq is not None:
        log.announce(commit.run_id, committed.last_seq)


@contextmanager
def _convert_errors() -> Iterator[None]:
    """Convert errors of the SQL function to `LeaseLost`, `LogNotFound` and `MoveRefused`."""
    try:
        with log.convert_errors():
            yield
    except DatabaseError as error:
        cause = error.__cause__
        if not isinstance(cause, psycopg.Error) or cause.sqlstate != CALL_CHANGED:
            raise
        raise MoveRefused(str(cause).splitlines()[0]) from error


def _has_long_rows(commit: Commit) -> bool:
    """Return whether a commit has values that are written in separate statements."""
    call, step = commit.finished_call, commit.outcome
    return (call is not None and call.output_bytes is not None) or (step is not None and _is_long(step))


def _is_long(step: RemoteStep) -> bool:
    return len(step.value or "") > LONG_VALUE


def _write_long_rows(commit: Commit) -> None:
    call, step = commit.finished_call, commit.outcome
    if call is not None and call.output_bytes is not None:
        columns = {name: getattr(call, name) for name in LONG_OUTPUT_COLUMNS}
        AgentRunToolCall.objects.filter(pk=call.pk).update(**columns)
    if step is not None and _is_long(step):
        RemoteStep.objects.filter(pk=step.pk).update(value=step.value)


def _write_portable(commit: Commit) -> bool:
    """Write a commit with separate statements, in one transaction."""
    with transaction.atomic(), connection.cursor() as cursor:
        if commit.epoch is not None:
            # First, so that a worker that lost its lease gets LeaseLost and not a conflict of positions.
            log.require_epoch(commit.run_id, commit.epoch)
        if commit.usage is not None and commit.epoch is not None:
            _count(commit.usage, commit.epoch, step_count=commit.usage.step_number)
            insert(cursor, [commit.usage])
        insert(cursor, commit.messages)
        insert(cursor, commit.calls)
        if commit.step_count is not None and commit.epoch is not None:
            _set_step_count(commit.run_id, commit.epoch, commit.step_count)
        insert(cursor, commit.commands)
        if (finished := commit.finished_call) is not None:
            _change_call(without_shared_output(finished, commit.messages), RESULT_COLUMNS, commit.expected_status)
        if (started := commit.started_call) is not None:
            changed = () if started.changed_arguments is None else ("changed_arguments",)
            _change_call(started, (*START_COLUMNS, *changed), commit.expected_status)
        insert(cursor, commit.remote_steps)
        if (step := commit.outcome) is not None:
            RemoteStep.objects.filter(pk=step.pk).update(**{name: getattr(step, name) for name in OUTCOME_COLUMNS})
        if commit.checkpoint is not None:
            insert(cursor, [commit.checkpoint])
        start = commit.next_turn_start
        if start is not None and _has_commands(cursor, commit.run_id):
            start = None
        if commit.started_call is None:
            chaos.point("turn.in_transaction" if commit.usage else "result.in_transaction")
        events = commit.events if start is None else [*commit.events, start]
        log.append(commit.run_id, events, source=commit.source, epoch=commit.epoch)
    return start is not None


def count_abandoned(run_id: UUID, epoch: int, entries: Sequence[Entry]) -> None:
    """Store the usage of the model calls that `entries` abandon, before the entries are appended in this transaction.

    This order prevents deadlocks: the run's row is locked before the row of its log.
    """
    for entry in entries:
        payload = entry.payload
        if not isinstance(payload, LlmTurnAbandoned) or not payload.usage:
            continue
        # If the event is in the log, this is a repetition after an unclear commit, and the usage is stored already.
        if entry.event_id is None or not log.has_event(run_id, entry.event_id):
            used = _abandoned_usage(run_id, payload, entry.step or 0)
            _count(used, epoch)
            used.save(force_insert=True)


def count_reported(usages: Sequence[TurnUsage], epoch: int) -> None:
    """Store usage that a program reports in addition to its answers, before its turn is written in this transaction.

    The order prevents deadlocks, as in `count_abandoned`.
    """
    for usage in usages:
        _count(usage, epoch)
        usage.save(force_insert=True)


def _abandoned_usage(run_id: UUID, payload: LlmTurnAbandoned, step: int) -> TurnUsage:
    """Return the usage of an abandoned model call as an unsaved row."""
    is_lost = payload.reason in LOST_WORKER_REASONS
    return TurnUsage(
        run_id=run_id,
        step_number=step,
        attempt=payload.attempt or 0,
        model=(payload.model or "")[:200],
        tier=(payload.tier or "")[:MAX_TIER],
        **{name: getattr(payload, name) or 0 for name in TOKENS},
        cost_usd=Decimal(payload.cost_usd) if payload.cost_usd is not None else None,
        cost_source=_source_of(payload).value,
        usage_complete=False,
        outcome=TurnUsage.Outcome.LOST if is_lost else TurnUsage.Outcome.ABANDONED,
        duration_ms=payload.duration_ms,
        created_at=database_clock.now(),
    )


def _source_of(payload: LlmTurnAbandoned) -> CostSource:
    if payload.cost_usd is None:
        return CostSource.UNKNOWN
    return CostSource(payload.cost_source or CostSource.COMPUTED)


def _count(usage: TurnUsage, epoch: int, *, step_count: int | None = None) -> None:
    """Add usage to the totals of the run. Has no effect if the run was taken over: then the next append rolls back."""
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


def _set_step_count(run_id: UUID, epoch: int, step_count: int) -> None:
    """Store the number of the run's last step. Has no effect if the run was taken over, as in `_count`."""
    key = AgentRun._meta.pk.get_db_prep_value(run_id, connection)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE agent_runs SET step_count = %s WHERE id = %s AND lease_epoch = %s AND status = 'running'",
            [step_count, key, epoch],
        )


def _change_call(call: AgentRunToolCall, columns: Sequence[str], expected_status: str) -> None:
    """Store columns of a call. Raises `MoveRefused` if its row does not have the expected status."""
    rows = AgentRunToolCall.objects.filter(pk=call.pk, status=expected_status)
    if not rows.update(**{name: getattr(call, name) for name in columns}):
        raise MoveRefused(f"call {call.pk} is not {expected_status} any more")


def _has_commands(cursor: CursorWrapper, run_id: UUID) -> bool:
    key = AgentRun._meta.pk.get_db_prep_value(run_id, connection)
    cursor.execute("SELECT 1 FROM agent_run_commands WHERE run_id = %s AND applied_at IS NULL LIMIT 1", [key])
    return cursor.fetchone() is not None


def _finished_document(commit: Commit, call: AgentRunToolCall) -> dict[str, Any]:
    """Return a call that has ended as JSON.

    Without a long output, which is written separately, and without an output that the result message stores.
    """
    document = _document(without_shared_output(call, commit.messages)) | {"believed": commit.expected_status}
    excluded = LONG_OUTPUT_COLUMNS if call.output_bytes is not None else ()
    return {name: value for name, value in document.items() if name not in excluded}


def shares_output(call: AgentRunToolCall, new_messages: Sequence[AgentRunMessage]) -> bool:
    """Whether one of these messages is the result of a call, and stores its whole output.

    Long outputs are stored in the row of the call, too: downloads read them in pieces.
    """
    result = next((row for row in new_messages if row.pk == call.result_message_id), None)
    return result is not None and call.output_bytes is None and result.content["parts"][0]["content"] == call.output


def without_shared_output(call: AgentRunToolCall, new_messages: Sequence[AgentRunMessage]) -> AgentRunToolCall:
    """Return a call as it is stored: a copy without the output, if one of these messages stores it."""
    if not shares_output(call, new_messages):
        return call
    stored = copy.copy(call)
    stored.output = None
    return stored


def _started_document(call: AgentRunToolCall, expected_status: str) -> dict[str, Any]:
    """Return the columns of a call that its start changes."""
    columns: dict[str, Any] = {"id": call.pk, "believed": expected_status}
    columns |= {name: getattr(call, name) for name in START_COLUMNS}
    return columns if call.changed_arguments is None else columns | {"changed_arguments": call.changed_arguments}


def _outcome_document(step: RemoteStep) -> dict[str, Any]:
    """Return the columns of a step that its outcome changes, without a long value, which is written separately."""
    columns = {"id": step.pk, **{name: getattr(step, name) for name in OUTCOME_COLUMNS}}
    return columns | {"value": None} if _is_long(step) else columns


def _document(row: models.Model) -> dict[str, Any]:
    """Return the columns of a row by name, without NULLs, as jsonb_populate_record reads them."""
    return {column: value for column, name in _columns(type(row)) if (value := getattr(row, name)) is not None}


@cache
def _columns(model: type[models.Model]) -> list[tuple[str, str]]:
    """Return the name of each column, and of its attribute."""
    return [(str(field.column), field.attname) for field in model._meta.concrete_fields]


def _dumps(rows: dict[str, Any]) -> str:
    try:
        return orjson.dumps(rows, default=_json).decode()
    except orjson.JSONEncodeError:  # a number beyond 64 bits
        return json.dumps(rows, default=_json)


def _json(value: object) -> str:
    """Return a value that JSON does not have as text, for PostgreSQL to parse."""
    match value:
        case UUID() | Decimal():
            return str(value)
        case datetime():
            return value.isoformat()
        case bytes() | memoryview():
            return "\\x" + bytes(value).hex()
    raise TypeError(f"{type(value).__name__} cannot be stored in a row")
