"""Translates events of the log into the agent dialect, with the same sequence numbers.

Events of the log contain previews; `WholeTexts` supplies the whole texts that the dialect promises, from the rows. A
failure that the log reports in an event of another type also becomes an `agent:error` with the same sequence number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any
from uuid import UUID

from pydantic.alias_generators import to_camel

from timeline import events
from timeline.event_vocabularies import CHILD_ENDS, CHILD_PHASE, DIALECT_TYPES, child_word, error_type
from timeline.events import EventType
from timeline.models import Event, Source
from timeline.shown_events import FAILED_STATUSES

Fields = dict[str, Any]
#: Suffix of the event ID of an `agent:error` that reports the failure of another event.
FAILURE = ":error"
#: Ends and pauses of a failed run. In a worker's run, an `error` event precedes them.
ENDS = frozenset({EventType.RUN_FAILED, EventType.RUN_PAUSED})
_DENIED, _MAX_STEPS, _USER_CANCELLED = "denied", "max_steps", "user_cancelled"
#: The prefix of a person in `by`.
_PERSON = "user:"


def failure_of(event: Event, reported: frozenset[int]) -> Fields | None:
    """Return the failure that an event reports, unless a separate `agent:error` reports it.

    `reported` are the sequence numbers of `ENDS` events whose failure a preceding `error` event reports. External
    runners report tool errors and refusals of their users themselves.
    """
    if event.type in ENDS:
        return None if event.seq in reported else _end_failure(event)
    if event.late or event.source == Source.INGEST:
        return None
    if event.type == EventType.TOOL_END:
        return _tool_failure(event)
    return _refusal(event) if event.type in (EventType.APPROVAL_RESOLVED, EventType.RUN_STOPPED) else None


def is_of_tool(event: Event) -> bool:
    """Return whether an `error` event is about an attempt of a tool. Whether the call failed is in its end event."""
    if event.type != EventType.ERROR or event.source != Source.WORKER:
        return False
    # Until 2026, the context contained the ID of the call.
    return bool(event.payload.get("call_id")) or str(event.payload.get("context")).startswith("tool:")


def _end_failure(event: Event) -> Fields | None:
    payload = event.payload
    if event.type == EventType.RUN_FAILED:
        return _failure_fields(event, payload.get("error_type"), payload.get("error"))
    if payload.get("reason") != _MAX_STEPS:
        return None
    return _failure_fields(event, _MAX_STEPS, None, payload.get("detail"))


def _tool_failure(event: Event) -> Fields | None:
    """Return the failure of a call. A denied call has not failed."""
    status, error = event.payload.get("status"), event.payload.get("error")
    if status == _DENIED or not (error or status in FAILED_STATUSES):
        return None
    call = {"toolCallId": event.payload.get("call_id"), "toolName": event.payload.get("tool_name")}
    return _failure_fields(event, "tool_error", error, call)


def _refusal(event: Event) -> Fields | None:
    """Return the failure of a call that a person denied, or of a run that a person stopped; otherwise None."""
    payload = event.payload
    if not str(payload.get("by")).startswith(_PERSON):
        return None
    if event.type == EventType.RUN_STOPPED:
        return _failure_fields(event, _USER_CANCELLED, None)
    call = {"toolCallId": payload.get("call_id"), "toolName": payload.get("tool_name")}
    return _failure_fields(event, _USER_CANCELLED, None, call) if payload.get("decision") == _DENIED else None


def _failure_fields(event: Event, type_: object, message: object, details: object = None) -> Fields:
    text = message or events.describe(event.type, event.payload)
    fields = {"errorType": error_type(type_), "message": text}
    return fields if details is None else {**fields, "details": details}


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Maximum length of an event ID before a suffix is added. The limit with suffix is 128.
MAX_ID = 120
_NO_USAGE = {"inputTokens": 0, "outputTokens": 0}


@dataclass(frozen=True, slots=True)
class WholeTexts:
    """Stored data of a run, and of the calls, messages and child runs that its events refer to."""

    #: Fields of `agent:start` and `agent:complete`.
    start: Fields = field(default_factory=dict)
    complete: Fields = field(default_factory=dict)
    #: Fields of `agent:tool`, by the row ID of the call.
    calls: Mapping[UUID, Fields] = field(default_factory=dict)
    #: Contents of system and user messages, by ID.
    contents: Mapping[UUID, str] = field(default_factory=dict)
    #: Prompts of child runs, by ID.
    prompts: Mapping[UUID, Any] = field(default_factory=dict)
    #: Sequence numbers of failed ends and pauses whose failure an immediately preceding `error` event reports.
    reported: frozenset[int] = frozenset()
    #: Whether the log belongs to a flow, which has no agent.
    is_flow: bool = False


def agent_events(event: Event, whole: WholeTexts) -> list[Fields]:
    """Return an event in the agent dialect, plus an `agent:error` for a failure that no other event reports.

    Fields of `agent:` events are flat; other events keep theirs in `payload`. `nodeId` is the ID of the agent outside
    flows, or of the run if the agent has none.
    """
    own = _envelope(event) | _own_fields(event, whole)
    failure = None if whole.is_flow else failure_of(event, whole.reported)
    if failure is None:
        return [own]
    name = f"{event.event_id[:MAX_ID]}{FAILURE}" if event.event_id else f"~{event.seq}{FAILURE}"
    error = _envelope(event) | {"eventId": name, "type": "agent:error", **failure}
    # The end of a run comes last.
    return [error, own] if event.type.startswith("run.") else [own, error]


def _envelope(event: Event) -> Fields:
    stamp = (event.ts - _EPOCH) // timedelta(milliseconds=1)
    return {
        "seq": event.seq,
        "eventId": event.event_id or f"~{event.seq}",
        "runId": str(event.log_id),
        "runKind": event.run_kind,
        "phase": event.phase,
        "type": event.type,
        "timestamp": stamp,
        "ts": stamp,
        "step": event.step,
        "nodeId": event.node_id or str(event.log_id),
    }


def _own_fields(event: Event, whole: WholeTexts) -> Fields:
    """Return the type and the fields of an event. Flow events and tool attempts have no `agent:` type."""
    flat = None if whole.is_flow or is_of_tool(event) else _FLAT.get(event.type)
    if flat is not None:
        extra = event.payload.get("extra")
        return {"type": DIALECT_TYPES[event.type], **flat(event, whole), **({"extra": extra} if extra else {})}
    name = DIALECT_TYPES.get(event.type, event.type)
    if event.type == EventType.CHILD_RUN_PHASE:
        word = child_word(f"child_job.{event.payload.get('phase')}")
        name = CHILD_PHASE if word in (None, "started", *CHILD_ENDS) else f"child_job.{word}"
    return {"type": event.type if event.type in _FLAT else str(name), "payload": payload_of(event, whole)}


def payload_of(event: Event, whole: WholeTexts) -> Fields:
    """Return the payload of an event with camel case names, its description as `message`, and whole texts."""
    if events.is_custom(event.type):
        return dict(event.payload)
    payload = {to_camel(name): value for name, value in event.payload.items()}
    payload.setdefault("message", events.describe(event.type, event.payload))
    return payload | _whole_fields(event, whole)


def _whole_fields(event: Event, whole: WholeTexts) -> Fields:
    """Return the whole texts that replace the previews in a payload."""
    if event.type == EventType.RUN_CREATED:
        return {"prompt": whole.start["prompt"]} if whole.start.get("prompt") else {}
    ref = event.ref_id
    if ref is None:
        return {}
    if event.type == EventType.TOOL_START and ref in whole.calls:
        return {"arguments": whole.calls[ref]["toolInput"]}
    by_name = (("content", whole.contents), ("prompt", whole.prompts))
    return {name: texts[ref] for name, texts in by_name if ref in texts}


def _start(event: Event, whole: WholeTexts) -> Fields:
    prompt = event.payload.get("prompt") or whole.start.get("prompt") or ""
    return {
        # Only fields known at the start, so that all readers get the same.
        "sessionId": event.payload.get("session_id") or str(event.log_id),
        **_present(model=event.payload.get("model") or whole.start.get("model") or None),
        "prompt": prompt,
    }


def _text(event: Event, whole: WholeTexts) -> Fields:
    payload = event.payload
    more = _present(tokenCount=payload.get("token_count"), index=payload.get("index"))
    return {"content": payload.get("text") or "", **more}


def _tool(event: Event, whole: WholeTexts) -> Fields:
    stored = whole.calls.get(event.ref_id, {}) if event.ref_id else {}
    error = event.payload.get("error")
    output = stored.get("toolOutput")
    if output is None:
        output = event.payload.get("output", event.payload.get("preview"))
    if error:
        # The stored output of a failed call is its complete error.
        error = output if isinstance(output, str) else error
        output = None
    more = _present(
        durationMs=event.payload.get("duration_ms"), error=error or None, inferred=event.payload.get("inferred")
    )
    return {
        "toolCallId": event.payload.get("call_id") or f"~{event.seq}",
        "toolName": event.payload.get("tool_name") or stored.get("toolName") or "tool",
        "toolInput": stored.get("toolInput"),
        "toolOutput": output,
        **more,
    }


def _error(event: Event, whole: WholeTexts) -> Fields:
    message = event.payload.get("error") or events.describe(event.type, event.payload)
    type_ = error_type(event.payload.get("error_type"))
    return {"errorType": type_, "message": message, **_present(details=event.payload.get("details"))}


def _complete(event: Event, whole: WholeTexts) -> Fields:
    payload, rows = event.payload, whole.complete
    sent = {
        "structuredOutput": payload.get("structured_output"),
        "modelUsage": payload.get("model_usage") or None,
        "totalCostUsd": _dollars(payload.get("cost_usd")),
        "durationMs": payload.get("duration_ms"),
        "numTurns": payload.get("steps"),
    }
    stored = {name: rows.get(name) for name, value in sent.items() if value is None}
    return {
        "result": as_text(rows.get("result") if payload.get("result") is None else payload["result"]),
        "usage": {**_NO_USAGE, **(rows.get("usage") or payload.get("usage") or {})},
        "durationMs": 0,
        "numTurns": 0,
        **_present(**(sent | stored)),
    }


def as_text(value: object) -> str:
    """Return a text unchanged, "" for None, and any other value as JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _present(**fields: Any) -> Fields:
    """Return the fields that have a value: missing optional fields are omitted, not null."""
    return {name: value for name, value in fields.items() if value is not None}


def _dollars(cost: object) -> float | None:
    """Return a cost as a number; None for an invalid one, which a late event of a runner may contain."""
    try:
        amount = float(str(cost))
    except ValueError:
        return None
    return amount if isfinite(amount) else None


#: Types whose fields are flat in the dialect.
_FLAT: dict[str, Callable[[Event, WholeTexts], Fields]] = {
    EventType.RUN_STARTED: _start,
    EventType.LLM_TEXT: _text,
    EventType.LLM_TEXT_DELTA: _text,
    EventType.LLM_THINKING: _text,
    EventType.LLM_THINKING_DELTA: _text,
    EventType.TOOL_END: _tool,
    EventType.ERROR: _error,
    EventType.RUN_COMPLETED: _complete,
}
