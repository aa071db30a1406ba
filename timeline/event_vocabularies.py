"""JSON Schemas of an event as sent, and the names of the agent dialect with the corresponding names of the log.

The dialect has camel case names and times in milliseconds. Fields of `agent:` events are flat in the event. Other
events keep their fields in `payload`, because some have the same names as fields of the envelope.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from timeline.events import REGISTRY, EventType
from timeline.models import Phase, RunKind, Source

#: Dialect type → log type. `agent:tool` also represents the start of the call.
TYPES: dict[str, str] = {
    "agent:start": EventType.RUN_STARTED,
    "agent:text": EventType.LLM_TEXT,
    "agent:text:delta": EventType.LLM_TEXT_DELTA,
    "agent:thinking": EventType.LLM_THINKING,
    "agent:thinking:delta": EventType.LLM_THINKING_DELTA,
    "agent:tool": EventType.TOOL_END,
    "agent:error": EventType.ERROR,
    "agent:complete": EventType.RUN_COMPLETED,
    "flow:started": EventType.FLOW_STARTED,
    "flow:resumed": EventType.FLOW_RESUMED,
    "flow:completed": EventType.FLOW_COMPLETED,
    "node:started": EventType.NODE_STARTED,
    "node:completed": EventType.NODE_COMPLETED,
    "node:failed": EventType.NODE_FAILED,
    "node:skipped": EventType.NODE_SKIPPED,
    "edge:fired": EventType.EDGE_FIRED,
    "edge:skipped": EventType.EDGE_SKIPPED,
    "edge:iterated": EventType.LOOP_ITERATED,
    "command:received": EventType.COMMAND_RECEIVED,
    "child_job.started": EventType.CHILD_RUN_STARTED,
    "child_job.phase": EventType.CHILD_RUN_PHASE,
    "child_job.completed": EventType.CHILD_RUN_COMPLETED,
}
#: The types of a child run's events: `child_job.` and a word.
CHILD_WORD = r"^child_job\.([a-z][a-z0-9_.]{0,63})$"
_CHILD = re.compile(CHILD_WORD.strip("^$"), re.ASCII)
#: The words that end a child run → its status.
CHILD_ENDS = {
    "completed": "completed",
    **dict.fromkeys(("failed", "error"), "failed"),
    **dict.fromkeys(("stopped", "cancelled", "canceled"), "stopped"),
}
CHILD_STARTED, CHILD_PHASE, CHILD_COMPLETED = "child_job.started", "child_job.phase", "child_job.completed"
#: Other verbs that runners send → the verb in the dialect type.
_VERBS = {
    "start": "started",
    "resume": "resumed",
    "complete": "completed",
    "fail": "failed",
    "error": "failed",
    "skip": "skipped",
    "fire": "fired",
    "iterate": "iterated",
}
#: Another type that runners send for `edge:iterated`.
_LOOP = "loop:iterated"
TOOL, NODE_ERROR = "agent:tool", "node:error"
#: Log type → dialect type. Types that are not listed keep their name.
DIALECT_TYPES: Mapping[str, str] = {type_: name for name, type_ in TYPES.items()}

#: Dialect type → its fields that have another name in the log.
FIELDS: dict[str, dict[str, str]] = {
    "agent:text": {"content": "text"},
    "agent:text:delta": {"content": "text"},
    "agent:thinking": {"content": "text"},
    "agent:thinking:delta": {"content": "text"},
    "agent:tool": {
        **dict.fromkeys(("toolInput", "args", "input"), "arguments"),
        **dict.fromkeys(("toolOutput", "result"), "output"),
        **dict.fromkeys(("toolCallId", "toolUseId"), "callId"),
    },
    "agent:error": {"message": "error"},
    "agent:complete": {"totalCostUsd": "costUsd", "numTurns": "steps"},
    "node:started": {"childRunId": "runId"},
    "node:completed": {"childRunId": "runId"},
    "node:failed": {"childRunId": "runId"},
    **dict.fromkeys(
        (CHILD_STARTED, CHILD_PHASE, CHILD_COMPLETED), dict.fromkeys(("childRunId", "childJobId", "jobId"), "runId")
    ),
    "edge:fired": {"from": "source", "to": "target", "edgeId": "edge"},
    "edge:skipped": {"from": "source", "to": "target", "edgeId": "edge"},
    "edge:iterated": {"edgeId": "edge"},
    "command:received": {"command": "type"},
}

#: Dialect error type → the log's error types for it. A received dialect type is stored as the first one. Other error
#: types have the same name in both.
ERROR_TYPES: dict[str, tuple[str, ...]] = {
    "error_tool_use": ("tool_error",),
    "error_max_turns": ("max_turns", "max_steps", "error_max_turns"),
    "error_user": ("user_cancelled",),
    "network_error": ("no_internet", "timeout"),
    "rate_limit": ("rate_limited",),
}
STORED_ERROR_TYPES: Mapping[str, str] = {name: types[0] for name, types in ERROR_TYPES.items()}
DIALECT_ERROR_TYPES: Mapping[str, str] = {type_: name for name, types in ERROR_TYPES.items() for type_ in types}


def dialect_type(sent: object) -> str | None:
    """Return the dialect type for a received type; None for types of another vocabulary."""
    if not isinstance(sent, str):
        return None
    if sent in TYPES:
        return sent
    if (word := child_word(sent)) is not None:
        return CHILD_COMPLETED if word in CHILD_ENDS else CHILD_PHASE
    subject, colon, verb = sent.partition(":")
    if not colon:
        return None
    name = f"{subject}:{_VERBS.get(verb, verb)}"
    if name == _LOOP:
        return DIALECT_TYPES[EventType.LOOP_ITERATED]
    return name if name in TYPES else None


def child_word(sent: object) -> str | None:
    """Return the word for a child run in a type, such as "progress"; None for other types."""
    match = _CHILD.fullmatch(sent) if isinstance(sent, str) else None
    return match[1] if match else None


def error_type(type_: object) -> str:
    """Return the dialect name of a log error type."""
    return DIALECT_ERROR_TYPES.get(str(type_), str(type_)) if type_ else "error"


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
#: Envelope members that the log's vocabulary and the dialect share.
_SHARED_ENVELOPE: Schema = {
    "seq": {"type": "integer", "minimum": 1},
    "runId": {"type": "string", "format": "uuid"},
    "runKind": {"enum": RunKind.values},
    "phase": {"enum": Phase.values},
    "step": _nullable(_COUNT),
}
#: The envelope in the log's vocabulary.
_LOG_ENVELOPE: Schema = {
    **_SHARED_ENVELOPE,
    "event_id": _TEXT,
    "ts": _TIME,
    "nodeId": _nullable(_TEXT),
    "source": {"enum": Source.values},
}
_MILLISECONDS: Schema = {"type": "integer", "description": "Milliseconds since 1970."}
#: The envelope in the agent dialect.
_AGENT_ENVELOPE: Schema = {
    **_SHARED_ENVELOPE,
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
    variants = [_variant({"const": type_}, _LOG_ENVELOPE | {"payload": payload}) for type_, payload in payloads.items()]
    custom = _variant(_CUSTOM, _LOG_ENVELOPE | {"payload": {"type": "object"}})
    return _document("Event", [*variants, custom], definitions)


@cache
def agent_schema() -> Schema:
    """Return the schema of an event in the agent dialect, as clients receive it."""
    definitions: Schema = {}
    names = {type_: str(DIALECT_TYPES.get(type_, type_)) for type_ in REGISTRY}
    # Flow events keep the log's names for the first two types, and tool attempts for the last.
    names |= {type_: type_ for type_ in (EventType.RUN_STARTED, EventType.RUN_COMPLETED, EventType.ERROR)}
    variants = [_flat_variant(name, fields) for name, fields in _FLAT.items()]
    variants += [
        _variant(_type_schema(name), _AGENT_ENVELOPE | {"payload": _payload(type_, definitions, by_alias=True)})
        for type_, name in names.items()
        if name not in _FLAT
    ]
    custom = _variant(_CUSTOM, _AGENT_ENVELOPE | {"payload": {"type": "object"}})
    return _document("Event in the agent dialect", [*variants, custom], definitions)


def _payload(type_: str, definitions: Schema, *, by_alias: bool) -> Schema:
    """Return the schema of a payload. Referenced schemas are added to `definitions`."""
    schema = REGISTRY[type_].model_json_schema(by_alias=by_alias)
    definitions |= schema.pop("$defs", {})
    return schema


def _flat_variant(name: str, fields: Schema) -> Schema:
    variant = _variant({"const": name}, _AGENT_ENVELOPE | fields, _OPTIONAL[name])
    return {**variant, "properties": variant["properties"] | {"extra": _EXTRA}}


def _type_schema(name: str) -> Schema:
    """Return the schema of the member `type`. A type of child runs may end with any word but those of other types."""
    if name != CHILD_PHASE:
        return {"const": name}
    return {"type": "string", "pattern": CHILD_WORD, "not": {"enum": [CHILD_STARTED, CHILD_COMPLETED]}}


def _variant(type_: Schema, members: Schema, optional: frozenset[str] = frozenset()) -> Schema:
    properties = {"type": type_, **members}
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _document(title: str, variants: list[Schema], definitions: Schema) -> Schema:
    return {"$schema": _DRAFT, "title": title, "oneOf": variants, "$defs": definitions}
