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
from timeline.dialects.agent_failures import FAILURE, failure_of, is_of_tool
from timeline.dialects.agent_names import CHILD_ENDS, CHILD_PHASE, DIALECT_TYPES, child_word
from timeline.dialects.agent_names import error_type as dialect_error_type
from timeline.events import EventType
from timeline.models import Event

Fields = dict[str, Any]
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
    told = _envelope(event) | {"eventId": name, "type": "agent:error", **failure}
    # The end of a run comes last.
    return [told, own] if event.type.startswith("run.") else [own, told]


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
    told = (("content", whole.contents), ("prompt", whole.prompts))
    return {name: texts[ref] for name, texts in told if ref in texts}


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
    type_ = dialect_error_type(event.payload.get("error_type"))
    return {"errorType": type_, "message": message, **_present(details=event.payload.get("details"))}


def _complete(event: Event, whole: WholeTexts) -> Fields:
    payload, rows = event.payload, whole.complete
    told = {
        "structuredOutput": payload.get("structured_output"),
        "modelUsage": payload.get("model_usage") or None,
        "totalCostUsd": _dollars(payload.get("cost_usd")),
        "durationMs": payload.get("duration_ms"),
        "numTurns": payload.get("steps"),
    }
    stored = {name: rows.get(name) for name, value in told.items() if value is None}
    return {
        "result": _as_text(rows.get("result") if payload.get("result") is None else payload["result"]),
        "usage": {**_NO_USAGE, **(rows.get("usage") or payload.get("usage") or {})},
        "durationMs": 0,
        "numTurns": 0,
        **_present(**(told | stored)),
    }


def _as_text(result: object) -> str:
    """Return a result as text; other values as JSON."""
    if result is None or isinstance(result, str):
        return result or ""
    return json.dumps(result, ensure_ascii=False, separators=(",", ":"))


def _present(**fields: Any) -> Fields:
    """Return the fields that have a value: missing optional fields are omitted, not null."""
    return {name: value for name, value in fields.items() if value is not None}


def _dollars(cost: object) -> float | None:
    """Return a cost as a number; None for an invalid cost, which a runner may send after the end of its run."""
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
