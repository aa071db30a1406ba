"""Closes tool calls: the only code that sets the result of a call.

`close` changes the call in memory, and returns the commit with its row, its result message and their events.
runs.conversation.writes stores the commit.

A worker closes a call after its tool has run. People also close calls, by answering a question or resolving an unknown
outcome. The end of a run closes the calls that are still open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from django.db import connection
from pydantic_ai.messages import ModelMessage, ToolReturnPart

from agentops.base import database_clock
from agentops.base.database_clock import Now
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.redaction.redact import MODEL_INPUT
from runs.conversation import long_outputs, transcript, writes
from runs.conversation.transcript import SHORT_PREVIEW
from runs.conversation.writes import Commit
from runs.fixtures.format import UNKNOWN_OUTCOME
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, Checkpoint, RunCommand
from runs.providers import messages
from runs.providers.messages import content_of
from runs.statuses import ToolStatus
from runs.tools.output import Output, shorten_for_model
from timeline.display import preview
from timeline.events import EventType
from timeline.events.tool import ToolEnd, args_summary
from timeline.log import Entry
from timeline.models import Event, Source

NOT_RUN = "not run: the run ended before this call"
ROLLED_BACK = "not run: the answer that requested it was rolled back"
#: The outcome in pydantic-ai, by the status of the call. Its adapters report errors to the provider by the outcome.
_OUTCOMES: dict[ToolStatus, Literal["success", "failed", "denied", "interrupted"]] = {
    ToolStatus.COMPLETED: "success",
    ToolStatus.ERROR: "failed",
    ToolStatus.DENIED: "denied",
    ToolStatus.UNKNOWN: "interrupted",
}
#: Calls with these statuses have a result. So have calls of other statuses with a result message.
_CLOSED = (ToolStatus.COMPLETED, ToolStatus.ERROR, ToolStatus.DENIED)
_OPEN_CALL = """
SELECT 1 FROM agent_run_tool_calls
WHERE run_id = %s AND result_message_id IS NULL AND status NOT IN (%s, %s, %s) LIMIT 1
"""


@dataclass(frozen=True)
class CallResult:
    """The result of a call. `output` is the whole output, not cut for the model."""

    status: ToolStatus
    output: Output
    attempts: int = 0
    #: Milliseconds that the tool ran; None if it did not run, or this is not known.
    duration_ms: int | None = None
    #: Events that belong to the result.
    events: Sequence[Entry] = ()
    #: Commands that the result adds to the run's inbox.
    commands: Sequence[RunCommand] = ()
    #: The time of the result, by the clock of the program that ran the call. None: now.
    at: datetime | None = None


@dataclass(frozen=True)
class ClosedCall:
    """The result message of a closed call as a row and for the model, and the commit that is still to be written."""

    row: AgentRunMessage
    message: ModelMessage
    commit: Commit


def close(
    call: AgentRunToolCall,
    result: CallResult,
    *,
    position: int,
    epoch: int | None,
    source: Source = Source.WORKER,
    limit: int | None = None,
    warning: str = "",
    before: Sequence[Entry] = (),
    checkpoint: Checkpoint | None = None,
    next_turn_start: Entry | None = None,
    redacts_all: bool = False,
) -> ClosedCall:
    """Set the result of `call` in memory, and return the commit to write.

    The model gets at most `limit` characters of each text of the output, and then `warning`. The events in `before` are
    appended before the end of the call. `checkpoint` and `next_turn_start` belong to the last result of a turn.
    `redacts_all`: see `transcript.new_row`. Writing raises `MoveRefused` (the status has changed) or `LeaseLost`.
    """
    expected_status, call.status = call.status, result.status.value
    call.attempts, call.duration_ms, call.finished_at = result.attempts, result.duration_ms, end_of(call)
    for_model, is_cut = shorten_for_model(result.output, limit)
    if is_cut or warning:
        call.output = (REDACTOR if redacts_all else MODEL_INPUT).clean(result.output)[0]
    row, message = transcript.new_row(
        call.run_id,
        position,
        messages.request(_part_for_model(call, result, _with_warning(for_model, warning))),
        role=AgentRunMessage.Role.TOOL_RESULT,
        step=call.step_number,
        epoch=epoch,
        redacts_all=redacts_all,
    )
    call.result_message_id = row.id
    _set_output(call, row)
    end = _end_event(call, transcript.masked_text_of(row), row)
    commit = Commit(
        run_id=call.run_id,
        epoch=epoch,
        source=source,
        events=[*before, end, transcript.message_event(row), *result.events],
        messages=[row],
        finished_call=call,
        commands=result.commands,
        expected_status=expected_status,
        checkpoint=checkpoint,
        next_turn_start=next_turn_start,
    )
    return ClosedCall(row, message, commit)


def _part_for_model(call: AgentRunToolCall, result: CallResult, output: Output) -> ToolReturnPart:
    part = ToolReturnPart(call.tool_name, content_of(output), call.call_id, outcome=_OUTCOMES[result.status])
    part.timestamp = result.at or part.timestamp
    return part


def _set_output(call: AgentRunToolCall, row: AgentRunMessage) -> None:
    """Set the output to what the model gets, unless the whole output is set. Set size and digest of a long output."""
    if call.output is None:
        call.output = row.content["parts"][0]["content"]
    if (facts := long_outputs.facts_of(call.output)) is not None:
        call.output_bytes, call.output_sha256 = facts.size, facts.sha256


def close_open_calls(run: AgentRun, *, epoch: int | None, source: Source) -> None:
    """Close every open call of a run that ends or pauses, in the caller's transaction.

    Planned calls are denied, and running calls get an unknown outcome. A later resume sends this history, and providers
    refuse a history with a call that has no result.
    """
    if not _has_open_call(run):
        return
    calls = (
        AgentRunToolCall.objects.filter(run=run, result_message=None)
        .exclude(status__in=_CLOSED)
        .order_by("step_number", "id")
    )
    for position, call in enumerate(calls, start=transcript.last_position(run.pk) + 1):
        result = denied_result(call) if call.status == ToolStatus.PLANNED else _interrupted_result(call)
        writes.write(close(call, result, position=position, epoch=epoch, source=source).commit)


def _has_open_call(run: AgentRun) -> bool:
    """Whether the run has a call to close. Uses no ORM, because every run ends with this query."""
    key = AgentRun._meta.pk.get_db_prep_value(run.pk, connection)
    with connection.cursor() as cursor:
        cursor.execute(_OPEN_CALL, [key, *(status.value for status in _CLOSED)])
        return cursor.fetchone() is not None


def denied_result(call: AgentRunToolCall) -> CallResult:
    """Return the result of a planned call that will not run."""
    return CallResult(ToolStatus.DENIED, NOT_RUN, call.attempts, call.duration_ms)


def unknown_result(call: AgentRunToolCall, *, attempts: int = 0) -> CallResult:
    """Return the result of a call that may or may not have taken effect."""
    return CallResult(ToolStatus.UNKNOWN, UNKNOWN_OUTCOME, max(attempts, call.attempts), call.duration_ms)


def _interrupted_result(call: AgentRunToolCall) -> CallResult:
    """Return the unknown result of a running call. It names the call's child runs, because these can be resumed."""
    started = Event.objects.filter(log=call.run_id, type=EventType.CHILD_RUN_STARTED, step=call.step_number)
    payloads = started.order_by("seq").values_list("payload", flat=True)
    children = [
        f"{one['run_id']} ({one.get('agent') or 'unnamed agent'})"
        for one in payloads
        if one.get("call_id") == call.call_id and one.get("run_id")  # a runner may omit both
    ]
    result = unknown_result(call)
    return replace(result, output=f"{result.output}; child runs: {', '.join(children)}") if children else result


def withdraw(calls: Sequence[AgentRunToolCall]) -> list[Entry]:
    """Deny the planned `calls` of an answer that is rolled back, in the caller's transaction. Returns their events.

    The calls get no result message, because their answer is no longer part of the conversation.
    """
    AgentRunToolCall.objects.filter(pk__in=[call.pk for call in calls]).update(
        status=ToolStatus.DENIED, finished_at=Now(), output=ROLLED_BACK
    )
    for call in calls:
        call.status, call.finished_at, call.output = ToolStatus.DENIED.value, database_clock.now(), ROLLED_BACK
    return [_end_event(call, ROLLED_BACK) for call in calls]


def end_of(call: AgentRunToolCall) -> datetime:
    """Return the time at which a call ends: now, but not before its start, which another machine may have set."""
    now = database_clock.now()
    return now if call.started_at is None else max(now, call.started_at)


def _with_warning(output: Output, warning: str) -> Output:
    if not warning:
        return output
    return f"{output}\n\n{warning}" if isinstance(output, str) else [*output, warning]


def _end_event(call: AgentRunToolCall, text: str, row: AgentRunMessage | None = None) -> Entry:
    """Return the event of the end of a call, with a preview of its output or error. `row`: the message with `text`."""
    text_preview, is_cut = preview(text, SHORT_PREVIEW)
    failed = call.status in (ToolStatus.ERROR, ToolStatus.DENIED)
    payload = ToolEnd(
        call_id=call.call_id,
        tool_name=call.tool_name,
        status=call.status,
        duration_ms=call.duration_ms,
        preview=None if failed else text_preview,
        truncated=is_cut,
        error=text_preview if failed else None,
        bytes=len(text.encode(errors="replace")),
        args_summary=args_summary(call.input),
    )
    # Only clean if the tool was started, because the model may have invented the name of any other tool.
    part = None
    # Only a completed call keeps its result for ever.
    if row is not None and call.status == ToolStatus.COMPLETED:
        part = transcript.shared_part(row, text_preview)
    return Entry(payload, step=call.step_number, ref_id=call.id, clean=call.starts > 0, text_part=part)
