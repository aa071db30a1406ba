"""Failures that the log reports in an event of another type than `error`, as fields of an `agent:error`."""

from __future__ import annotations

from typing import Any

from timeline import events
from timeline.dialects.agent_names import error_type
from timeline.events import EventType
from timeline.events.failures import FAILED_STATUSES
from timeline.models import Event, Source

Fields = dict[str, Any]
#: Suffix of the event ID.
FAILURE = ":error"
#: Ends and pauses of a failed run. In a worker's run, an `error` event precedes them.
ENDS = frozenset({EventType.RUN_FAILED, EventType.RUN_PAUSED})
DENIED, MAX_STEPS, PERSON = "denied", "max_steps", "user:"
_USER = "user_cancelled"


def failure_of(event: Event, reported: frozenset[int]) -> Fields | None:
    """Return the failure that an event reports, unless a separate `agent:error` reports it.

    `reported` are the sequence numbers of `ENDS` events that follow an `error` event. External runners report tool
    errors and refusals of their users themselves.
    """
    if event.type in ENDS:
        return None if event.seq in reported else _end(event)
    if event.late or event.source == Source.INGEST:
        return None
    if event.type == EventType.TOOL_END:
        return _tool(event)
    return _refusal(event) if event.type in (EventType.APPROVAL_RESOLVED, EventType.RUN_STOPPED) else None


def is_of_tool(event: Event) -> bool:
    """Return whether an `error` event is about an attempt of a tool. Whether the call failed is in its end event."""
    if event.type != EventType.ERROR or event.source != Source.WORKER:
        return False
    # Until 2026, the context contained the ID of the call.
    return bool(event.payload.get("call_id")) or str(event.payload.get("context")).startswith("tool:")


def _end(event: Event) -> Fields | None:
    payload = event.payload
    if event.type == EventType.RUN_FAILED:
        return _fields(event, payload.get("error_type"), payload.get("error"))
    return _fields(event, MAX_STEPS, None, payload.get("detail")) if payload.get("reason") == MAX_STEPS else None


def _tool(event: Event) -> Fields | None:
    """Return the failure of a call. A denied call has not failed."""
    status, error = event.payload.get("status"), event.payload.get("error")
    if status == DENIED or not (error or status in FAILED_STATUSES):
        return None
    call = {"toolCallId": event.payload.get("call_id"), "toolName": event.payload.get("tool_name")}
    return _fields(event, "tool_error", error, call)


def _refusal(event: Event) -> Fields | None:
    """Return the refusal or cancellation by a person."""
    payload = event.payload
    if not str(payload.get("by")).startswith(PERSON):
        return None
    if event.type == EventType.RUN_STOPPED:
        return _fields(event, _USER, None)
    call = {"toolCallId": payload.get("call_id"), "toolName": payload.get("tool_name")}
    return _fields(event, _USER, None, call) if payload.get("decision") == DENIED else None


def _fields(event: Event, type_: object, message: object, details: object = None) -> Fields:
    text = message or events.describe(event.type, event.payload)
    fields = {"errorType": error_type(type_), "message": text}
    return fields if details is None else {**fields, "details": details}
