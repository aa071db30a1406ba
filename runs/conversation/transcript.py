"""The conversation of a run: its rows, and the history that a request is built from.

Rows are added, never changed; what a tool came to is
written into its call's row, with its result message and its event, in one transaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Max
from django.utils import timezone
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from uuid_utils.compat import uuid7

from runs import chaos
from runs.conversation import ancestry, writes
from runs.conversation.message_text import text_of
from runs.conversation.writes import Commit
from runs.errors import MoveRefused
from runs.fixtures.format import UNKNOWN_OUTCOME
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, Checkpoint
from runs.providers import messages
from runs.statuses import ToolStatus
from runs.tools.base import Effect
from timeline import log
from timeline.events.message import MessageAdded
from timeline.events.tool import ToolEnd, ToolStart
from timeline.fast_insert import insert
from timeline.log import Entry
from timeline.models import Source
from timeline.preview import preview
from timeline.redaction.redact import BARE
from timeline.redaction.redact import DEFAULT as REDACTOR

Role = AgentRunMessage.Role
#: Bytes of a message or an output that its event repeats; the row holds the whole.
PREVIEW = 280
NOT_RUN = "not run: the run was ended before this call"


@dataclass
class Conversation:
    """The history as the next request sees it, kept in memory by the worker that holds the run."""

    history: list[ModelMessage] = field(default_factory=list)
    #: Of the last row of this run.
    position: int = 0
    last_role: str = ""

    def add(self, row: AgentRunMessage, message: ModelMessage) -> None:
        messages.join(self.history, message)
        self.position = row.position
        self.last_role = row.role


def load(run: AgentRun) -> Conversation:
    """Everything said in the conversation up to now: three queries, and two more for each fork on the way."""
    rows = rows_of(run)
    return Conversation(merge(rows), position=last_position(run.pk), last_role=rows[-1].role if rows else "")


def last_position(run_id: UUID) -> int:
    """Of the run's own messages, the rolled-back ones included: no other has their places."""
    found: int | None = AgentRunMessage.objects.filter(run=run_id).aggregate(last=Max("position"))["last"]
    return found or 0


def merge(rows: Iterable[AgentRunMessage]) -> list[ModelMessage]:
    """The history that a request is built from: every request, the first and the rebuilt one, comes from here."""
    return messages.merge(messages.load(row.content) for row in rows)


def rows_of(run: AgentRun) -> list[AgentRunMessage]:
    """The messages of the conversation that `run` continues, oldest first, without the rolled-back ones."""
    segments = ancestry.segments_of(run)
    place = {segment.run_id: number for number, segment in enumerate(segments)}
    rows = AgentRunMessage.objects.filter(ancestry.within(segments), rolled_back_at=None)
    return _instructed(sorted(rows, key=lambda row: (place[row.run_id], row.position)))


def _instructed(rows: list[AgentRunMessage]) -> list[AgentRunMessage]:
    """The newest instructions count: those of a fork stand in front, in place of those that it was forked from."""
    told = [row for row in rows if row.role == Role.SYSTEM]
    if not told or told[-1].run_id == rows[0].run_id:
        return rows
    newest = [row for row in told if row.run_id == told[-1].run_id]
    return [*newest, *(row for row in rows if row.role != Role.SYSTEM)]


def new_row(
    run_id: UUID, position: int, message: ModelMessage, *, role: str, step: int, epoch: int | None
) -> tuple[AgentRunMessage, ModelMessage]:
    """A row for `message`, and the message as the row has it, which is what requests are built from.

    Text that we send is redacted here, so what is stored is what is sent; what the model said is kept as it is,
    but for NUL and lone surrogates, which no jsonb column takes.
    """
    dumped = messages.dump(message)
    text = messages.canonical(dumped)
    content = messages.as_stored(dumped, text)
    text = text if content is dumped else messages.canonical(content)
    found: frozenset[str] = frozenset()
    if role != Role.ASSISTANT or not messages.fits_a_column(text):
        cleaned, found = (BARE if role == Role.ASSISTANT else REDACTOR).clean(content)
        content = cast("dict[str, Any]", cleaned)
        text = messages.canonical(content) if found else text
    row = AgentRunMessage(
        id=uuid7(),
        run_id=run_id,
        position=position,
        role=role,
        content=content,
        step_number=step,
        epoch=epoch,
        model=str(content.get("model_name") or "")[:200],
        sha256=messages.sha256_of(text),
        created_at=timezone.now(),
    )
    return row, message if content is dumped else messages.load(content)


def added(row: AgentRunMessage) -> Entry:
    """The event of a message. A tool result has its preview in `tool.end`."""
    text = text_of(row.content)
    shown, cut = ("", False) if row.role == Role.TOOL_RESULT else preview(text, PREVIEW)
    payload = MessageAdded(
        role=cast("Any", row.role),
        position=row.position,
        preview=shown or None,
        truncated=cut,
        bytes=len(text.encode(errors="replace")),
    )
    return Entry(payload, step=row.step_number, ref_id=row.id, clean=row.role != Role.ASSISTANT)


def add_requests(
    run: AgentRun, requests: Iterable[tuple[str, ModelRequest]], *, step: int, epoch: int | None, position: int
) -> list[tuple[AgentRunMessage, ModelMessage]]:
    """Insert system and user messages after `position`; their events (`added`) are the caller's to append."""
    made = [
        new_row(run.pk, position + i, message, role=role, step=step, epoch=epoch)
        for i, (role, message) in enumerate(requests, start=1)
    ]
    with connection.cursor() as cursor:
        insert(cursor, [row for row, _ in made])
    return made


def planned_call(asked_by: AgentRunMessage, part: ToolCallPart, *, effect: Effect | None) -> AgentRunToolCall:
    """The row of a call that the model asked for; its tool may not exist (no effect is known then)."""
    pk = uuid7()
    return AgentRunToolCall(
        id=pk,
        run_id=asked_by.run_id,
        message_id=asked_by.id,
        call_id=part.tool_call_id[:256],
        tool_name=part.tool_name[:256],
        input=REDACTOR.clean(_readable(part.args))[0],
        effect=(effect or Effect.READ).value,
        idempotency_key=str(pk) if effect is Effect.IDEMPOTENT else None,
        step_number=asked_by.step_number,
        created_at=asked_by.created_at,
    )


def _readable(arguments: str | dict[str, Any] | None) -> Any:
    """The arguments as an object, or the exact text where that says something that no JSON column takes."""
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        value = json.loads(arguments)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def start_call(call: AgentRunToolCall, *, attempt: int) -> Entry:
    """Mark `call` running in memory and give the event to commit with its row."""
    call.status = ToolStatus.RUNNING.value
    call.starts += 1
    call.started_at = timezone.now()
    shown, _ = preview(call.input if isinstance(call.input, str) else messages.canonical(call.input), PREVIEW)
    payload = ToolStart(
        call_id=call.call_id, tool_name=call.tool_name, attempt=attempt or None, effect=call.effect, arguments=shown
    )
    return Entry(payload, step=call.step_number, ref_id=call.id, clean=True)


def commit_start(call: AgentRunToolCall, entry: Entry, epoch: int, *, believed: str) -> None:
    """Commit `running` (see `start_call`) before the call is made."""
    with transaction.atomic():
        # First the append: a worker that was taken over must hear that, not of a call that is not as it was.
        log.append(call.run_id, [entry], source=Source.WORKER, epoch=epoch)
        mine = AgentRunToolCall.objects.filter(pk=call.pk, status=believed)
        if not mine.update(status=call.status, starts=call.starts, started_at=call.started_at):
            raise MoveRefused(f"call {call.pk} is not {believed} any more")


def stored_output(output: str | list[Any]) -> Any:
    """The whole output as the row keeps it beside what the model saw."""
    return REDACTOR.clean(output)[0]


def result_row(
    call: AgentRunToolCall, part: ToolReturnPart, *, position: int, epoch: int | None
) -> tuple[AgentRunMessage, ModelMessage]:
    row, message = new_row(
        call.run_id, position, messages.request(part), role=Role.TOOL_RESULT, step=call.step_number, epoch=epoch
    )
    call.result_message_id = row.id
    return row, message


def ended(call: AgentRunToolCall, text: str) -> Entry:
    """The event that completes the card of a call."""
    shown, cut = preview(text, PREVIEW)
    failed = call.status in (ToolStatus.ERROR, ToolStatus.DENIED)
    payload = ToolEnd(
        call_id=call.call_id, tool_name=call.tool_name, status=call.status, duration_ms=call.duration_ms,
        preview=None if failed else shown, truncated=cut, error=shown if failed else None,
        bytes=len(text.encode(errors="replace")),
    )  # fmt: skip
    # A tool that was started has a name of ours; one that does not exist has whatever the model made up.
    return Entry(payload, step=call.step_number, ref_id=call.id, clean=call.starts > 0)


def result(
    call: AgentRunToolCall,
    row: AgentRunMessage,
    *,
    believed: str,
    epoch: int | None,
    source: Source = Source.WORKER,
    checkpoint: Checkpoint | None = None,
    more: Sequence[Entry] = (),
    then: Entry | None = None,
) -> Commit:
    """What a call came to, to be committed: its row, its result message, their events, and the checkpoint where
    it is the last of its turn. Unless the caller has kept more, the row's output is what the model is given."""
    if call.output is None:
        call.output = row.content["parts"][0]["content"]
    events = [ended(call, text_of(row.content)), added(row), *more]
    return Commit(
        run_id=call.run_id, epoch=epoch, source=source, events=events, messages=[row], finished=call,
        believed=believed, checkpoint=checkpoint, then=then,
    )  # fmt: skip


def new_checkpoint(run_id: UUID, step: int, position: int, epoch: int) -> Checkpoint:
    return Checkpoint(
        id=uuid7(), run_id=run_id, step_number=step, last_message_position=position, epoch=epoch,
        created_at=timezone.now(),
    )  # fmt: skip


def add_checkpoint(row: Checkpoint, epoch: int) -> None:
    """A checkpoint by itself, after a turn without tools or after a crash; an existing one is left as it is."""
    with transaction.atomic():
        log.hold(row.run_id, epoch)
        Checkpoint.objects.get_or_create(
            run_id=row.run_id, step_number=row.step_number,
            defaults={"id": row.id, "last_message_position": row.last_message_position, "epoch": row.epoch,
                      "created_at": row.created_at},
        )  # fmt: skip
        chaos.point("checkpoint.in_transaction")


def last_checkpoint(run: AgentRun) -> int:
    """The last step of `run` that has a checkpoint; 0 where none has."""
    return Checkpoint.objects.filter(run=run).aggregate(last=Max("step_number"))["last"] or 0


def last_answer(conversation: Conversation) -> str:
    """The text of the model's last word; empty where it said none."""
    for message in reversed(conversation.history):
        if isinstance(message, ModelResponse):
            return "".join(part.content for part in message.parts if isinstance(part, TextPart))
    return ""


def end_of(call: AgentRunToolCall) -> datetime:
    """Now; but not before its start, which may stand there by the clock of another machine."""
    now = timezone.now()
    return now if call.started_at is None else max(now, call.started_at)


def close_open_calls(run: AgentRun, *, epoch: int | None, source: Source) -> None:
    """Give every open call of `run` its end and its result: planned ones are denied, running ones unknown.

    Providers refuse a history in which a call has no result, and a later resume sends this one.
    """
    calls = list(
        AgentRunToolCall.objects.filter(run=run, result_message=None)
        .exclude(status__in=[ToolStatus.COMPLETED, ToolStatus.ERROR, ToolStatus.DENIED])
        .order_by("step_number", "id")
    )
    if not calls:
        return
    for position_of_result, call in enumerate(calls, start=last_position(run.pk) + 1):
        believed = call.status
        started = believed != ToolStatus.PLANNED
        call.status = (ToolStatus.UNKNOWN if started else ToolStatus.DENIED).value
        call.finished_at = end_of(call)
        part = ToolReturnPart(
            call.tool_name, UNKNOWN_OUTCOME if started else NOT_RUN, call.call_id,
            outcome="interrupted" if started else "denied",
        )  # fmt: skip
        row, _ = result_row(call, part, position=position_of_result, epoch=epoch)
        writes.write(result(call, row, believed=believed, epoch=epoch, source=source))
