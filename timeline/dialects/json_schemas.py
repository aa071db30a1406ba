"""JSON Schemas of an event as sent, in the log's own vocabulary and in the agent dialect."""

from __future__ import annotations

from functools import cache
from typing import Any

from timeline.dialects.agent_names import CHILD_COMPLETED, CHILD_PHASE, CHILD_STARTED, CHILD_WORD, DIALECT_TYPES
from timeline.events import REGISTRY, EventType
from timeline.models import Phase, RunKind, Source

Schema = dict[str, Any]

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_ANY: Schema = {}
_TIME: Schema = {"type": "string", "format": "date-time"}
_CUSTOM: Schema = {"type": "string", "pattern": r"^x(\.[a-z][a-z0-9_]*)+$"}
_TOOLS = (EventType.TOOL_START, EventType.TOOL_END)


def _nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


#: Fields that `events.wire_fields` adds to tool events.
_TOOL_FIELDS: Schema = {"tool": _nullable(_TEXT), "argsSummary": _nullable(_TEXT), "durationMs": _nullable(_COUNT)}
_SHARED: Schema = {
    "seq": {"type": "integer", "minimum": 1},
    "runId": {"type": "string", "format": "uuid"},
    "runKind": {"enum": RunKind.values},
    "phase": {"enum": Phase.values},
    "step": _nullable(_COUNT),
}
_OWN: Schema = {
    **_SHARED,
    "event_id": _TEXT,
    "ts": _TIME,
    "nodeId": _nullable(_TEXT),
    "source": {"enum": Source.values},
}
_MILLISECONDS: Schema = {"type": "integer", "description": "Milliseconds since 1970."}
_AGENT: Schema = {
    **_SHARED,
    "eventId": _TEXT,
    "timestamp": _MILLISECONDS,
    "ts": _MILLISECONDS,
    "nodeId": {"type": "string", "description": "The agent's ID, the node within a flow, or else the run's ID."},
}
_TEXT_FIELDS: Schema = {"content": _TEXT, "tokenCount": _COUNT, "index": _COUNT}
_TOKENS: Schema = dict.fromkeys(
    ("inputTokens", "outputTokens", "cacheCreationInputTokens", "cacheReadInputTokens"), _COUNT
)
_USAGE: Schema = {"type": "object", "properties": _TOKENS, "required": ["inputTokens", "outputTokens"]}
#: Fields of `agent:` events by type. They are on the same level as the envelope.
_FLAT: dict[str, Schema] = {
    "agent:start": {"sessionId": _TEXT, "model": _TEXT, "prompt": {"anyOf": [_TEXT, {"type": "array"}]}},
    "agent:text": _TEXT_FIELDS,
    "agent:text:delta": _TEXT_FIELDS,
    "agent:thinking": _TEXT_FIELDS,
    "agent:thinking:delta": _TEXT_FIELDS,
    "agent:tool": {
        "toolCallId": _TEXT,
        "toolName": _TEXT,
        "toolInput": _ANY,
        "toolOutput": _ANY,
        "durationMs": _COUNT,
        "error": _TEXT,
        "inferred": {"const": True, "description": "The call was found by its tool and its order."},
    },
    "agent:error": {"errorType": _TEXT, "message": _TEXT, "details": _ANY},
    "agent:complete": {
        "result": _TEXT,
        "structuredOutput": _ANY,
        "usage": _USAGE,
        "modelUsage": {"type": "object"},
        "totalCostUsd": {"type": "number"},
        "durationMs": _COUNT,
        "numTurns": _COUNT,
    },
}
#: Fields that are omitted if they have no value, by type. In text events, everything but the content is optional.
_OPTIONAL: dict[str, frozenset[str]] = {
    "agent:start": frozenset({"model"}),
    **dict.fromkeys(
        ("agent:text", "agent:text:delta", "agent:thinking", "agent:thinking:delta"), frozenset({"tokenCount", "index"})
    ),
    "agent:tool": frozenset({"durationMs", "error", "inferred"}),
    "agent:error": frozenset({"details"}),
    "agent:complete": frozenset({"structuredOutput", "modelUsage", "totalCostUsd"}),
}
_EXTRA: Schema = {"type": "object", "description": "What a runner has sent beside these fields."}


@cache
def events_schema() -> Schema:
    """Return the schema of an event in the log's own vocabulary."""
    definitions: Schema = {}
    payloads = {type_: _payload(type_, definitions, by_alias=False) for type_ in REGISTRY}
    for type_ in _TOOLS:
        payloads[type_] = {**payloads[type_], "properties": payloads[type_]["properties"] | _TOOL_FIELDS}
    variants = [_variant({"const": type_}, _OWN | {"payload": payload}) for type_, payload in payloads.items()]
    custom = _variant(_CUSTOM, _OWN | {"payload": {"type": "object"}})
    return _document("Event", [*variants, custom], definitions)


@cache
def agent_schema() -> Schema:
    """Return the schema of an event in the agent dialect, as clients receive it."""
    definitions: Schema = {}
    names = {type_: str(DIALECT_TYPES.get(type_, type_)) for type_ in REGISTRY}
    # Flow events keep the log's names for the first two types, and tool attempts for the last.
    names |= {type_: type_ for type_ in (EventType.RUN_STARTED, EventType.RUN_COMPLETED, EventType.ERROR)}
    variants = [_flat(name, fields) for name, fields in _FLAT.items()]
    variants += [
        _variant(_named(name), _AGENT | {"payload": _payload(type_, definitions, by_alias=True)})
        for type_, name in names.items()
        if name not in _FLAT
    ]
    custom = _variant(_CUSTOM, _AGENT | {"payload": {"type": "object"}})
    return _document("Event in the agent dialect", [*variants, custom], definitions)


def _payload(type_: str, definitions: Schema, *, by_alias: bool) -> Schema:
    """Return the schema of a payload. Referenced schemas are added to `definitions`."""
    schema = REGISTRY[type_].model_json_schema(by_alias=by_alias)
    definitions |= schema.pop("$defs", {})
    return schema


def _flat(name: str, fields: Schema) -> Schema:
    variant = _variant({"const": name}, _AGENT | fields, _OPTIONAL[name])
    return {**variant, "properties": variant["properties"] | {"extra": _EXTRA}}


def _named(name: str) -> Schema:
    """Return the schema of a type; child run types may end with any word."""
    if name != CHILD_PHASE:
        return {"const": name}
    return {"type": "string", "pattern": CHILD_WORD, "not": {"enum": [CHILD_STARTED, CHILD_COMPLETED]}}


def _variant(type_: Schema, members: Schema, optional: frozenset[str] = frozenset()) -> Schema:
    properties = {"type": type_, **members}
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _document(title: str, variants: list[Schema], definitions: Schema) -> Schema:
    return {"$schema": _DRAFT, "title": title, "oneOf": variants, "$defs": definitions}
