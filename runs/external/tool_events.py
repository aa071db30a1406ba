"""Applies tool-call events to the rows of an external run."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any, cast

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.conversation import tool_results, tool_starts
from runs.conversation.tool_results import CallResult
from runs.external import contents
from runs.external.event_input import IncomingEvent, RejectedEvent
from runs.external.notes import with_notes
from runs.external.projection import Projection
from runs.models import AgentRunToolCall
from runs.statuses import RESOLVED, ToolStatus
from timeline.events import Payload
from timeline.events.tool import ToolEnd, ToolOutput, ToolStart
from timeline.log import Entry

_UNKNOWN_TOOL = "tool"
#: The largest duration that fits its column.
MAX_MILLISECONDS = 2**31 - 1
#: Statuses of an ended call, by the words that runners use.
_CALL_STATUSES = {
    "completed": ToolStatus.COMPLETED,
    "success": ToolStatus.COMPLETED,
    "ok": ToolStatus.COMPLETED,
    "error": ToolStatus.ERROR,
    "failed": ToolStatus.ERROR,
    "denied": ToolStatus.DENIED,
    "unknown": ToolStatus.UNKNOWN,
}


def tool_start(projection: Projection, event: IncomingEvent, payload: ToolStart) -> int:
    call = projection.find_call(payload.call_id)
    if call is None or is_closed(call):
        name = payload.tool_name or _name_of_unknown(call, payload.call_id)
        call = _request_call(projection, event, payload.call_id, name, payload.arguments)
    if call.starts:
        # A runner's retry is the same call: the runner decides whether its tool may run twice.
        again = payload if payload.tool_name else payload.model_copy(update={"tool_name": call.tool_name})
        return projection.append(projection.entry_of(event, again, step=call.step_number))
    entry = _start(projection, call, event.ts, is_own=True)
    started = cast("ToolStart", entry.payload)
    stored = with_notes(started, payload).model_copy(update={"attempt": payload.attempt})
    return projection.append(projection.entry_of(event, stored, step=entry.step, ref_id=entry.ref_id))


def _start(projection: Projection, call: AgentRunToolCall, at: datetime | None, *, is_own: bool = False) -> Entry:
    """Mark a call as running, and return its `tool.start`, which is appended unless it was received."""
    entry = tool_starts.start_call(call, attempt=0)
    # The effect class of its tool is unknown here.
    entry = replace(entry, payload=cast("ToolStart", entry.payload).model_copy(update={"effect": None}))
    call.started_at = at or call.started_at
    projection.change_call(call)
    if not is_own:
        projection.append(projection.derived(entry, at))
    return entry


def tool_output(projection: Projection, event: IncomingEvent, payload: ToolOutput) -> int:
    call = projection.find_call(payload.call_id) if payload.call_id else None
    columns: dict[str, Any] = {"step": call.step_number, "ref_id": call.pk} if call is not None else {}
    return projection.append(projection.entry_of(event, **columns))


def tool_end(projection: Projection, event: IncomingEvent, payload: ToolEnd) -> int:
    call = projection.find_call(payload.call_id)
    if call is None:
        name = payload.tool_name or _name_of_unknown(None, payload.call_id)
        call = _request_call(projection, event, payload.call_id, name, None)
    if is_closed(call):
        return projection.append(projection.entry_of(event, step=call.step_number))
    status = _CALL_STATUSES.get(payload.status or "", ToolStatus.ERROR if payload.error else ToolStatus.COMPLETED)
    result = CallResult(status, _output(event, payload), duration_ms=whole(payload.duration_ms), at=event.ts)
    if event.message is None and contents.is_value(payload.output):
        # The message has its text; the row has the value itself.
        call.output = REDACTOR.clean(payload.output)[0]
    return close_call(projection, call, result, event, own="end")


def _output(event: IncomingEvent, payload: ToolEnd) -> Any:
    """Return the whole output of a call, or its error."""
    if event.message is not None:
        return event.message.parts[0].content  # type: ignore[union-attr]
    value = next((v for v in (payload.output, payload.error, payload.preview) if v is not None), "")
    return contents.user_content(value)


def _name_of_unknown(before: AgentRunToolCall | None, call_id: str) -> str:
    """Return the tool of a call that no answer requested: the tool of the ended call with the same ID."""
    if before is None:
        text = f"no call {call_id[:64]!r} is known; tool_name is required to record it"
        raise RejectedEvent("unknown_call", text, "/payload/callId")
    return before.tool_name


def _request_call(
    projection: Projection, event: IncomingEvent, call_id: str, name: str, arguments: object
) -> AgentRunToolCall:
    """Return a new call that no answer requested. A separate answer is added for it, with the preceding texts."""
    projection.close_answer(event.ts, contents.call_part(call_id, name or _UNKNOWN_TOOL, arguments))
    call = projection.find_call(call_id)
    assert call is not None
    return call


def close_call(
    projection: Projection, call: AgentRunToolCall, result: CallResult, event: IncomingEvent, *, own: str
) -> int:
    """Close a call, with its result message. `own` names the event of the two that was received."""
    if call.starts == 0 and result.status is not ToolStatus.DENIED:
        # The runner reported no start.
        _start(projection, call, event.ts)
    closed = tool_results.close(
        call, result, position=projection.position + 1, epoch=None, source=projection.source, redacts_all=True
    )
    if event.ts is not None:
        call.finished_at = max(event.ts, call.started_at or event.ts)
        closed.row.created_at = event.ts
    projection.add_row(closed.row)
    projection.change_call(call)
    seq = 0
    for kind, entry in zip(("end", "message"), closed.commit.events, strict=False):
        if kind == own:
            payload = with_notes(cast("Payload", entry.payload), event.payload)
            seq = projection.append(projection.entry_of(event, payload, step=entry.step, ref_id=entry.ref_id))
        else:
            projection.append(projection.derived(entry, event.ts))
    return seq


def is_closed(call: AgentRunToolCall) -> bool:
    """Return whether a call has its result. A call of unknown outcome at the end of a growing file may still get it."""
    return call.status in RESOLVED and call.result_message_id is not None


def whole(milliseconds: float | None) -> int | None:
    return None if milliseconds is None else min(round(milliseconds), MAX_MILLISECONDS)
