"""Translates an event of the agent dialect into events of the log. Nothing is validated: that follows as for others.

A field may be flat in the event or in its `payload`, as runners send both.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from typing import Any

from pydantic.alias_generators import to_camel

from timeline.dialects.agent_names import ERROR_TYPES, FIELDS, NODE_ERROR, TOOL, TYPES, dialect_type
from timeline.events import EventType

#: Members of an event that are not its fields. `source` is a field of edges.
_ENVELOPE = frozenset(
    {
        *("event_id", "eventId", "runId", "run_id", "type", "ts", "timestamp", "payload", "runKind", "run_kind"),
        *("phase", "step", "nodeId", "node_id", "seq", "source"),
    }
)
#: Fields of `agent:tool` that belong to the start of the call, to its end, or to both.
_START_ONLY = ("arguments", "effect", "attempt")
_BOTH = ("callId", "call_id", "toolName", "tool_name")
_END_ONLY = ("output", "durationMs", "duration_ms", "error", "status")


class AmbiguousEvent(ValueError):
    """A field is given twice. `pointer` is a JSON pointer into the event."""

    code = "duplicate_field"

    def __init__(self, name: str, pointer: str) -> None:
        super().__init__(f"{name[:64]} is given under two names")
        self.pointer = pointer


def is_agent_event(document: object) -> bool:
    """Return whether the JSON value is an event with a type of this dialect."""
    return isinstance(document, dict) and dialect_type(document.get("type")) is not None


def to_canonical(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the events of the log that an event of this dialect stands for. Only the first has its event ID.

    `agent:tool` stands for the start and the end of a call; all others for one event. Raises `AmbiguousEvent`.
    """
    name = dialect_type(document.get("type"))
    assert name is not None
    envelope = _envelope(document, name)
    payload = document.get("payload")
    if payload is not None and not isinstance(payload, Mapping) and not _is_command_payload(document):
        return [{**envelope, "payload": payload}]
    fields = _fields(document, name)
    if name == TOOL:
        return _tool_events(envelope, fields)
    if name == "agent:error" and isinstance(fields.get("errorType"), str):
        fields["errorType"] = ERROR_TYPES.get(fields["errorType"], fields["errorType"])
    for prefix, field in (("agent:start", "agent"), ("node:", "node")):
        node_id = envelope.get("nodeId", envelope.get("node_id"))
        if name.startswith(prefix) and node_id is not None:
            fields.setdefault(field, node_id)
    return [{**envelope, "payload": fields}]


def pointer_into(document: Mapping[str, Any], pointer: str) -> str:
    """Return the pointer into an event of this dialect for a pointer into the event that it was translated to."""
    if pointer == "/ts" and "ts" not in document:
        return "/timestamp"
    head, _, rest = pointer.removeprefix("/payload/").partition("/")
    if not pointer.startswith("/payload/"):
        return pointer
    name = dialect_type(document.get("type")) or ""
    renamed = _renamed(document, name)
    names = [*(sent for sent, field in renamed.items() if field == to_camel(head)), head, to_camel(head)]
    rest = f"/{rest}" if rest else ""
    inner = document.get("payload")
    for sent in names:
        if isinstance(inner, Mapping) and sent in inner and not _is_command_payload(document):
            return f"/payload/{sent}{rest}"
        if sent in document:
            return f"/{sent}{rest}"
    return f"/{names[0] if names[0] in renamed else to_camel(head)}{rest}"


def _envelope(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    envelope = {key: document[key] for key in document if key in _ENVELOPE and not _is_field(key, name)}
    del envelope["type"]
    envelope.pop("payload", None)
    if "timestamp" in envelope:
        if "ts" in envelope:
            raise AmbiguousEvent("ts", "/timestamp")
        envelope["ts"] = envelope.pop("timestamp")
    return {**envelope, "type": str(TYPES[name])}


def _fields(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the fields of an event with the names of the log."""
    flat = {key: value for key, value in document.items() if key not in _ENVELOPE or _is_field(key, name)}
    inner = document.get("payload")
    if _is_command_payload(document):
        flat, inner = {**flat, "payload": inner}, None
    renamed = _renamed(document, name)
    fields: dict[str, Any] = {}
    for prefix, group in (("", flat), ("/payload", inner or {})):
        for sent, value in group.items():
            field = renamed.get(sent, sent)
            if field in fields:
                raise AmbiguousEvent(field, f"{prefix}/{sent}")
            fields[field] = value
    return fields


def _renamed(document: Mapping[str, Any], name: str) -> Mapping[str, str]:
    """Return the fields of an event that the log calls differently. An error of a node may have a message only."""
    renamed = FIELDS.get(name, {})
    inner = document.get("payload")
    has_error = "error" in document or (isinstance(inner, Mapping) and "error" in inner)
    return {**renamed, "message": "error"} if document.get("type") == NODE_ERROR and not has_error else renamed


def _tool_events(envelope: dict[str, Any], fields: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the start and the end of a call. Fields that neither has stay with the start, which is refused then."""
    if fields.get("callId", fields.get("call_id")) is None:
        fields = {**fields, "callId": _call_id(envelope)}
    if not fields.get("error"):
        fields = {key: value for key, value in fields.items() if key != "error"}
    start = {key: value for key, value in fields.items() if key not in _END_ONLY}
    end = {key: value for key, value in fields.items() if key in _BOTH or key in _END_ONLY}
    began, duration = envelope.get("ts"), fields.get("durationMs")
    if type(began) is int and isinstance(duration, int | float) and 0 <= duration <= began:
        began -= round(duration)
    later = {key: value for key, value in envelope.items() if key not in ("event_id", "eventId", "seq")}
    first = {**envelope, "type": str(EventType.TOOL_START), "payload": start}
    if began is not None:
        first["ts"] = began
    return [first, {**later, "payload": end}]


def _call_id(envelope: Mapping[str, Any]) -> str:
    """Return the ID of a call that was sent without one: the same for a repeat of the event."""
    event_id = envelope.get("event_id") or envelope.get("eventId")
    if event_id is None:
        return f"call-{uuid.uuid4().hex}"
    return f"call-{hashlib.sha256(str(event_id).encode(errors='replace')).hexdigest()[:32]}"


def _is_field(key: str, name: str) -> bool:
    return key == "source" and name.startswith("edge:")


def _is_command_payload(document: Mapping[str, Any]) -> bool:
    """Whether the payload is that of the command itself, because the command's type stands beside it."""
    return document.get("type") == "command:received" and "command" in document
