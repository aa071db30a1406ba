"""Applies tool-call events to the rows of an external run, and finds the call of an event without a call ID.

The name of its tool and the order of the calls identify such a call.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import datetime
from typing import Any, cast
from uuid import uuid4

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.conversation import tool_results, tool_starts
from runs.conversation.tool_results import CallResult
from runs.external import contents
from runs.external.event_input import IncomingEvent, RejectedEvent
from runs.external.foreign_payloads import with_notes
from runs.external.projection import Projection
from runs.models import AgentRunToolCall
from runs.statuses import RESOLVED, ToolStatus
from timeline.events import Payload
from timeline.events.tool import ToolEnd, ToolOutput, ToolStart
from timeline.log import Entry

#: The name of a tool that its event does not name.
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


def apply_tool_start(projection: Projection, event: IncomingEvent, payload: ToolStart) -> int:
    """Start a call. If no answer requested it, an answer with the call is added."""
    call = projection.find_call(payload.call_id)
    if call is None or is_closed(call):
        name = payload.tool_name or _tool_of_repeated_call(call, payload.call_id)
        call = _request_call(projection, event, payload.call_id, name, payload.arguments)
    if call.starts:
        # A runner's retry is the same call: the runner decides whether its tool may run twice.
        again = payload if payload.tool_name else payload.model_copy(update={"tool_name": call.tool_name})
        return projection.append(projection.entry_of(event, again, step=call.step_number))
    entry = _mark_started(projection, call, event.ts)
    started = cast("ToolStart", entry.payload)
    stored = with_notes(started, payload).model_copy(update={"attempt": payload.attempt})
    return projection.append(projection.entry_of(event, stored, step=entry.step, ref_id=entry.ref_id))


def _mark_started(projection: Projection, call: AgentRunToolCall, at: datetime | None) -> Entry:
    """Mark a call as running, and return its `tool.start`, which the caller appends."""
    entry = tool_starts.start_call(call, attempt=0)
    # Whether the tool may be repeated is unknown here.
    entry = replace(entry, payload=cast("ToolStart", entry.payload).model_copy(update={"effect": None}))
    call.started_at = at or call.started_at
    projection.change_call(call)
    return entry


def apply_tool_output(projection: Projection, event: IncomingEvent, payload: ToolOutput) -> int:
    call = projection.find_call(payload.call_id) if payload.call_id else None
    columns: dict[str, Any] = {"step": call.step_number, "ref_id": call.pk} if call is not None else {}
    return projection.append(projection.entry_of(event, **columns))


def apply_tool_end(projection: Projection, event: IncomingEvent, payload: ToolEnd) -> int:
    """Close a call with its result, unless it has one. If no answer requested it, an answer with the call is added."""
    call = projection.find_call(payload.call_id)
    if call is None:
        name = payload.tool_name or _tool_of_repeated_call(None, payload.call_id)
        call = _request_call(projection, event, payload.call_id, name, None)
    if is_closed(call):
        return projection.append(projection.entry_of(event, step=call.step_number))
    status = _CALL_STATUSES.get(payload.status or "", ToolStatus.ERROR if payload.error else ToolStatus.COMPLETED)
    result = CallResult(
        status, _output(event, payload), duration_ms=whole_milliseconds(payload.duration_ms), at=event.ts
    )
    if event.message is None and contents.is_value(payload.output):
        # The result message gets the value as a text, the row of the call the value itself.
        call.output = REDACTOR.clean(payload.output)[0]
    return close_call(projection, call, result, event, own="end")


def _output(event: IncomingEvent, payload: ToolEnd) -> Any:
    """Return the output of a call, or else its error or its preview."""
    if event.message is not None:
        return event.message.parts[0].content  # type: ignore[union-attr]
    value = next((v for v in (payload.output, payload.error, payload.preview) if v is not None), "")
    return contents.user_content(value)


def _tool_of_repeated_call(earlier: AgentRunToolCall | None, call_id: str) -> str:
    """Return the tool of a new call with the ID of an `earlier` call. Raises `RejectedEvent` without such a call."""
    if earlier is None:
        text = f"no call {call_id[:64]!r} is known; tool_name is required to record it"
        raise RejectedEvent("unknown_call", text, "/payload/callId")
    return earlier.tool_name


def _request_call(
    projection: Projection, event: IncomingEvent, call_id: str, name: str, arguments: object
) -> AgentRunToolCall:
    """Add an answer that requests a call, with the texts received so far. Return the new call."""
    projection.close_answer(event.ts, contents.call_part(call_id, name or _UNKNOWN_TOOL, arguments))
    call = projection.find_call(call_id)
    assert call is not None
    return call


def close_call(
    projection: Projection, call: AgentRunToolCall, result: CallResult, event: IncomingEvent, *, own: str
) -> int:
    """Close a call, and add its result message and both events: `tool.end` and `message.added`.

    `own`: which of them is the received `event`: "end" or "message". The other one is derived. Returns the sequence
    number of the received event.
    """
    if call.starts == 0 and result.status is not ToolStatus.DENIED:
        # The runner reported no start.
        projection.append(projection.derived(_mark_started(projection, call, event.ts), event.ts))
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
    """Return whether a call has its result. A call with an unknown outcome may still get one."""
    return call.status in RESOLVED and call.result_message_id is not None


def whole_milliseconds(milliseconds: float | None) -> int | None:
    """Return whole milliseconds, at most as many as the column can store."""
    return None if milliseconds is None else min(round(milliseconds), MAX_MILLISECONDS)


OfCall = ToolStart | ToolOutput | ToolEnd


def with_call(projection: Projection, event: IncomingEvent) -> IncomingEvent:
    """Return a tool-call event, and the events derived from it, with the ID of the call that they belong to.

    Raises `RejectedEvent` if the event names neither a call nor a tool, and no call is open.
    """
    payload = event.payload
    if not isinstance(payload, OfCall):
        return event
    if not payload.call_id:
        call = _oldest_open(projection, payload, has_end=bool(event.following))
        if call is None and isinstance(payload, ToolOutput):
            return event
        if call is None and not payload.tool_name:
            text = "an event of a tool call requires callId or toolName, because no call is open"
            raise RejectedEvent("required", text, "/payload/toolName")
        call_id = call.call_id if call is not None else _new_id(event)
        payload = payload.model_copy(update={"call_id": call_id, "inferred": True})
        event = replace(event, payload=payload)
    if event.following:
        event = _with_end(projection, event, payload)
    return event


def _oldest_open(projection: Projection, payload: OfCall, *, has_end: bool) -> AgentRunToolCall | None:
    """Return the oldest open call to which an event without a call ID can belong; None without one.

    `has_end`: the end of the call was sent with its start, so the call may already be running.
    """
    if projection.run.state.terminal:
        return None
    name = REDACTOR.clean_text(payload.tool_name or "")[0][:256]
    calls = [call for call in projection.newest_calls() if not (is_closed(call) or (name and call.tool_name != name))]
    running = [call for call in calls if call.starts]
    planned = [call for call in calls if not call.starts]
    match payload:
        case ToolStart():
            calls = running + planned if has_end else planned
        case ToolOutput():
            calls = running
        case ToolEnd():
            calls = running + planned
    return calls[0] if calls else None


def _new_id(event: IncomingEvent) -> str:
    """Return an ID for a new call, which is the same if the event is sent again with its ID."""
    if event.event_id is None:
        return f"call-{uuid4().hex}"
    return f"call-{hashlib.sha256(event.event_id.encode(errors='replace')).hexdigest()[:32]}"


def _with_end(projection: Projection, event: IncomingEvent, start: OfCall) -> IncomingEvent:
    """Return a start and the end that was sent in the same event, or only the end if the call already runs.

    Both get the call ID of `start`.
    """
    named = {"call_id": start.call_id, "inferred": start.inferred}
    end, *rest = [replace(one, payload=one.payload.model_copy(update=named)) for one in event.following]
    call = projection.find_call(str(start.call_id))
    if call is None or call.status != ToolStatus.RUNNING:
        return replace(event, following=(end, *rest))
    return replace(end, event_id=event.event_id, body_sha256=event.body_sha256, following=tuple(rest))
