"""The interfaces that readers of events rely on, as JSON Schemas: written from their definition, not from the product.

A member that is not required may be absent, but is never null. Additional members are allowed.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
ANY: Schema = {}
NAMED: Schema = {"type": "string", "minLength": 1}
MESSAGES: Schema = {"type": "array", "items": {"type": "object", "required": ["role", "content"]}}
USAGE: Schema = {
    "type": "object",
    "properties": dict.fromkeys(
        ("inputTokens", "outputTokens", "cacheCreationInputTokens", "cacheReadInputTokens"), NUMBER
    ),
    "required": ["inputTokens", "outputTokens"],
}
TEXT_MEMBERS: Schema = {"content": TEXT}
THOUGHT_MEMBERS: Schema = {"content": TEXT, "tokenCount?": NUMBER}

#: The members of each event type of the agent dialect. A question mark means that the member may be absent.
AGENT_EVENTS: dict[str, Schema] = {
    "agent:start": {"sessionId": NAMED, "model?": TEXT, "prompt": {"anyOf": [TEXT, MESSAGES]}},
    "agent:thinking:delta": THOUGHT_MEMBERS,
    "agent:thinking": THOUGHT_MEMBERS,
    "agent:text:delta": TEXT_MEMBERS,
    "agent:text": TEXT_MEMBERS,
    "agent:tool": {"toolName": NAMED, "toolInput": ANY, "toolOutput": ANY, "durationMs?": NUMBER, "error?": TEXT},
    "agent:error": {"errorType": NAMED, "message": TEXT, "details?": ANY, "recoverable!": ANY},
    "agent:complete": {
        "result": TEXT,
        "structuredOutput?": ANY,
        "usage": USAGE,
        "modelUsage?": {"type": "object", "propertyNames": NAMED, "additionalProperties": USAGE, "minProperties": 1},
        "totalCostUsd?": NUMBER,
        "durationMs": NUMBER,
        "numTurns": NUMBER,
    },
}
ERROR_TYPES = frozenset({"error_tool_use", "error_max_turns", "error_user", "network_error", "rate_limit"})
#: Milliseconds between 2001 and 2286, so that seconds and texts fail.
ENVELOPE: Schema = {
    "nodeId": NAMED,
    "runId": NAMED,
    "type": NAMED,
    "timestamp": {"type": "integer", "minimum": 10**12, "maximum": 10**13},
}

TIMELINE_EVENT: Schema = {
    "type": "object",
    "properties": {
        "seq": {"type": "integer", "minimum": 1},
        "ts": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$"},
        "runId": NAMED,
        "runKind": {"enum": ["session", "job"]},
        "phase": {"enum": ["queued", "running", "completed", "failed", "stopped"]},
        "type": NAMED,
        "payload": {"type": "object", "properties": {"message": NAMED}, "required": ["message"]},
    },
    "required": ["seq", "ts", "runId", "runKind", "phase", "type", "payload"],
}


def agent_event_schema(type_: str) -> Schema:
    """Return the schema of an event of the agent dialect. For other families, return the schema of their envelope."""
    properties, required = dict(ENVELOPE), list(ENVELOPE)
    for member, schema in AGENT_EVENTS.get(type_, {}).items():
        name = member.rstrip("?!")
        properties[name] = False if member.endswith("!") else schema
        required += [name] if name == member else []
    return {"type": "object", "properties": properties, "required": required}
