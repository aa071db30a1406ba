"""Finds the tool calls of runners that send no call IDs, by tool name and order."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from uuid import uuid4

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.external.event_input import IncomingEvent, RejectedEvent
from runs.external.projection import Projection
from runs.external.tool_events import is_closed
from runs.models import AgentRunToolCall
from runs.statuses import ToolStatus
from timeline.events.tool import ToolEnd, ToolOutput, ToolStart

OfCall = ToolStart | ToolOutput | ToolEnd


def with_call(projection: Projection, event: IncomingEvent) -> IncomingEvent:
    """Return a tool-call event, with its derived events, that has the ID of the matching call.

    Raises `RejectedEvent` if it names neither a call nor a tool, and no call is open.
    """
    payload = event.payload
    if not isinstance(payload, OfCall):
        return event
    if not payload.call_id:
        call = _oldest(projection, payload, is_whole=bool(event.following))
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


def _oldest(projection: Projection, payload: OfCall, *, is_whole: bool) -> AgentRunToolCall | None:
    """Return the oldest open call that matches an event: requested, running, or either."""
    if projection.run.state.terminal:
        return None
    name = REDACTOR.clean_text(payload.tool_name or "")[0][:256]
    calls = [
        call for call in projection.newest_calls() if not (is_closed(call) or (name and call.tool_name != name))
    ]  # fmt: skip
    running = [call for call in calls if call.starts]
    planned = [call for call in calls if not call.starts]
    match payload:
        case ToolStart():
            calls = running + planned if is_whole else planned
        case ToolOutput():
            calls = running
        case ToolEnd():
            calls = running + planned
    return calls[0] if calls else None


def _new_id(event: IncomingEvent) -> str:
    """Return an ID for a new call. A repeat of the event gives the same ID."""
    if event.event_id is None:
        return f"call-{uuid4().hex}"
    return f"call-{hashlib.sha256(event.event_id.encode(errors='replace')).hexdigest()[:32]}"


def _with_end(projection: Projection, event: IncomingEvent, start: OfCall) -> IncomingEvent:
    """Return a start with the end that was sent in the same event, or only the end if the call was started before."""
    named = {"call_id": start.call_id, "inferred": start.inferred}
    end, *rest = [replace(one, payload=one.payload.model_copy(update=named)) for one in event.following]
    call = projection.find_call(str(start.call_id))
    if call is None or call.status != ToolStatus.RUNNING:
        return replace(event, following=(end, *rest))
    return replace(end, event_id=event.event_id, body_sha256=event.body_sha256, following=tuple(rest))
