"""Translates an event of the agent dialect into events of the log. It does not validate: the API does that afterwards.

Fields may be flat in the event or in its `payload`, because runners send both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic.alias_generators import to_camel

from timeline.event_vocabularies import (
    CHILD_COMPLETED,
    CHILD_ENDS,
    CHILD_PHASE,
    FIELDS,
    NODE_ERROR,
    STORED_ERROR_TYPES,
    TOOL,
    TYPES,
    child_word,
    dialect_type,
)
from timeline.events import EventType

#: Members of an event that are envelope, not fields. `source` is a field of edges.
_ENVELOPE = frozenset(
    {
        *("event_id", "eventId", "runId", "run_id", "type", "ts", "timestamp", "payload", "runKind", "run_kind"),
        *("phase", "step", "nodeId", "node_id", "seq", "source"),
    }
)
#: Fields of `agent:tool` that belong to the start of the call only.
_START_ONLY = ("arguments", "effect", "attempt")
#: Fields of `agent:tool` that belong to both the start and the end. All others belong to the end.
_BOTH = ("callId", "call_id", "toolName", "tool_name", "tool")


class AmbiguousEvent(ValueError):
    """A field occurs twice. `pointer` is a JSON pointer into the event."""

    code = "duplicate_field"

    def __init__(self, name: str, pointer: str) -> None:
        super().__init__(f"{name[:64]} is given under two names")
        self.pointer = pointer


def is_agent_event(document: object) -> bool:
    """Return whether the JSON value is an event with a type of this dialect."""
    return isinstance(document, dict) and dialect_type(document.get("type")) is not None


def to_canonical(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the events of the log that an event of this dialect represents. Only the first has its event ID.

    `agent:tool` represents the start and the end of a call; every other type represents one event. Raises
    `AmbiguousEvent`.
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
        fields["errorType"] = STORED_ERROR_TYPES.get(fields["errorType"], fields["errorType"])
    word = child_word(document.get("type"))
    if name == CHILD_PHASE and (word != "phase" or "phase" not in fields):
        fields["phase"] = word
    elif name == CHILD_COMPLETED and word != "completed":
        fields.setdefault("status", CHILD_ENDS[str(word)])
    for prefix, field in (("agent:start", "agent"), ("node:", "node")):
        node_id = envelope.get("nodeId", envelope.get("node_id"))
        # If the node ID is the run ID, the run has no agent.
        if name.startswith(prefix) and node_id not in (None, envelope.get("runId", envelope.get("run_id"))):
            fields.setdefault(field, node_id)
    return [{**envelope, "payload": fields}]


def pointer_into(document: Mapping[str, Any], pointer: str) -> str:
    """Return the JSON pointer into a received event for `pointer`, which points into its translation."""
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
    """Return the envelope of an event with the log's type. `name` is the type in the dialect, here and below."""
    envelope = {key: document[key] for key in document if key in _ENVELOPE and not _is_field(key, name)}
    del envelope["type"]
    envelope.pop("payload", None)
    if "timestamp" in envelope and envelope.get("ts") in (None, envelope["timestamp"]):
        envelope["ts"] = envelope.pop("timestamp")
    return {**envelope, "type": str(TYPES[name])}


def _fields(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the fields of an event under the log's names.

    If two names of one field have different values, the second value stays under its received name. Raises
    `AmbiguousEvent` if one name has two values.
    """
    flat = {key: value for key, value in document.items() if key not in _ENVELOPE or _is_field(key, name)}
    inner = document.get("payload")
    if _is_command_payload(document):
        flat, inner = {**flat, "payload": inner}, None
    renamed = _renamed(document, name)
    fields: dict[str, Any] = {}
    synonyms: dict[str, str] = {}
    for prefix, group in (("", flat), ("/payload", inner or {})):
        for sent, value in group.items():
            field = renamed.get(sent, renamed.get(to_camel(sent), sent))
            is_other = field != sent and synonyms.get(field, sent) != sent and fields[field] != value
            field = sent if is_other else field
            if field in fields and fields[field] != value:
                raise AmbiguousEvent(field, f"{prefix}/{sent}")
            fields[field] = value
            synonyms |= {field: sent} if field != sent else {}
    return fields


def _renamed(document: Mapping[str, Any], name: str) -> Mapping[str, str]:
    """Return the log's name of each field that has another name there, by the received name.

    The `message` of a `node:error` without `error` is its error.
    """
    renamed = FIELDS.get(name, {})
    inner = document.get("payload")
    has_error = "error" in document or (isinstance(inner, Mapping) and "error" in inner)
    return {**renamed, "message": "error"} if document.get("type") == NODE_ERROR and not has_error else renamed


def _tool_events(envelope: dict[str, Any], fields: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the start and the end of a call."""
    if not fields.get("error"):
        fields = {key: value for key, value in fields.items() if key != "error"}
    start = {key: value for key, value in fields.items() if key in _BOTH or key in _START_ONLY}
    end = {key: value for key, value in fields.items() if key not in _START_ONLY}
    started_at, duration = envelope.get("ts"), fields.get("durationMs")
    if type(started_at) is int and isinstance(duration, int | float) and 0 <= duration <= started_at:
        started_at -= round(duration)
    end_envelope = {key: value for key, value in envelope.items() if key not in ("event_id", "eventId", "seq")}
    first = {**envelope, "type": str(EventType.TOOL_START), "payload": start}
    if started_at is not None and "timestamp" not in envelope:
        first["ts"] = started_at
    return [first, {**end_envelope, "payload": end}]


def _is_field(key: str, name: str) -> bool:
    """Return whether a member of `_ENVELOPE` is a field in an event of this type."""
    return key == "source" and name.startswith("edge:")


def _is_command_payload(document: Mapping[str, Any]) -> bool:
    """Return whether the payload belongs to the command itself, because the command's type is next to it."""
    return document.get("type") == "command:received" and "command" in document
