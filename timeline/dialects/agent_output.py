"""Translates events of the log into the agent dialect. Each event becomes one, under the same sequence number.

Events of the log are short: what the dialect promises whole comes from the rows, as `WholeTexts`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any
from uuid import UUID

from pydantic.alias_generators import to_camel

from timeline import events
from timeline.dialects.agent_names import DIALECT_ERROR_TYPES, DIALECT_TYPES
from timeline.events import EventType
from timeline.models import Event

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class WholeTexts:
    """What rows say of a run, and of the calls, messages and child runs that its events refer to."""

    #: Fields of `agent:start` and `agent:complete`.
    start: Fields = field(default_factory=dict)
    complete: Fields = field(default_factory=dict)
    #: Fields of `agent:tool`, by the ID of the call's row.
    calls: Mapping[UUID, Fields] = field(default_factory=dict)
    #: Contents of system and user messages.
    contents: Mapping[UUID, str] = field(default_factory=dict)
    #: Prompts of child runs.
    prompts: Mapping[UUID, Any] = field(default_factory=dict)


def agent_event(event: Event, whole: WholeTexts) -> Fields:
    """Return an event in the agent dialect.

    The fields of `agent:` events are flat; the others keep theirs in `payload`. `nodeId` is the ID of the agent
    outside flows, or of the run if the agent has none.
    """
    name, flat = DIALECT_TYPES.get(event.type, event.type), _FLAT.get(event.type)
    if event.type == EventType.RUN_PAUSED and event.payload.get("reason") == "max_steps":
        flat = _step_limit
    if flat is not None:
        name = name if name.startswith("agent:") else "agent:error"
        fields = flat(event, whole)
    else:
        fields = {"payload": payload_of(event, whole)}
    return {
        "seq": event.seq,
        "eventId": event.event_id or f"~{event.seq}",
        "runId": str(event.log_id),
        "runKind": event.run_kind,
        "phase": event.phase,
        "type": str(name),
        "ts": round(event.ts.timestamp() * 1000),
        "step": event.step,
        "nodeId": event.node_id or str(event.log_id),
        **fields,
    }


def payload_of(event: Event, whole: WholeTexts) -> Fields:
    """Return the payload of an event with camel case names, its sentence as `message`, and whole texts."""
    if events.is_custom(event.type):
        return dict(event.payload)
    payload = {to_camel(name): value for name, value in event.payload.items()}
    payload.setdefault("message", events.describe(event.type, event.payload))
    return payload | _whole_fields(event, whole)


def _whole_fields(event: Event, whole: WholeTexts) -> Fields:
    """Return what rows say in place of the previews in a payload."""
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
    told = {"sessionId": event.payload.get("session_id"), **_of(event, "model", "prompt")}
    return told | {name: value for name, value in whole.start.items() if value}


def _text(event: Event, whole: WholeTexts) -> Fields:
    also = {to_camel(name): event.payload[name] for name in ("token_count", "index") if name in event.payload}
    return {"content": event.payload.get("text") or "", **also}


def _tool(event: Event, whole: WholeTexts) -> Fields:
    stored = whole.calls.get(event.ref_id, {}) if event.ref_id else {}
    error = event.payload.get("error")
    output = stored.get("toolOutput")
    if output is None:
        output = event.payload.get("output", event.payload.get("preview"))
    if error:
        # The stored output of a failed call is its whole error.
        error = output if isinstance(output, str) else error
        output = None
    return {
        "toolCallId": event.payload["call_id"],
        "toolName": event.payload.get("tool_name") or stored.get("toolName"),
        "toolInput": stored.get("toolInput"),
        "toolOutput": output,
        "durationMs": event.payload.get("duration_ms"),
        "error": error or None,
    }


def _error(event: Event, whole: WholeTexts) -> Fields:
    """Return the fields of an error, or of the failure that ends a run."""
    type_ = event.payload.get("error_type") or "error"
    message = event.payload.get("error") or events.describe(event.type, event.payload)
    return {
        "errorType": DIALECT_ERROR_TYPES.get(type_, type_),
        "message": message,
        "details": event.payload.get("details"),
    }


def _step_limit(event: Event, whole: WholeTexts) -> Fields:
    message = events.describe(event.type, event.payload)
    return {"errorType": "error_max_turns", "message": message, "details": event.payload.get("detail")}


def _complete(event: Event, whole: WholeTexts) -> Fields:
    told = {
        **_of(event, "result", "structured_output", "usage", "model_usage"),
        "totalCostUsd": _dollars(event.payload.get("cost_usd")),
        "durationMs": event.payload.get("duration_ms"),
        "numTurns": event.payload.get("steps"),
    }
    return told | {name: value for name, value in whole.complete.items() if told.get(name) is None or name == "usage"}


def _dollars(cost: object) -> float | None:
    """Return a cost as a number; None for what is none, as a runner may send it after the end of its run."""
    try:
        amount = float(str(cost))
    except ValueError:
        return None
    return amount if isfinite(amount) else None


def _of(event: Event, *names: str) -> Fields:
    return {to_camel(name): event.payload.get(name) for name in names}


#: Types whose fields are flat in the dialect. A failed run is an `agent:error`.
_FLAT: dict[str, Callable[[Event, WholeTexts], Fields]] = {
    EventType.RUN_STARTED: _start,
    EventType.LLM_TEXT: _text,
    EventType.LLM_TEXT_DELTA: _text,
    EventType.LLM_THINKING: _text,
    EventType.LLM_THINKING_DELTA: _text,
    EventType.TOOL_END: _tool,
    EventType.ERROR: _error,
    EventType.RUN_FAILED: _error,
    EventType.RUN_COMPLETED: _complete,
}
