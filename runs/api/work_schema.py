"""The bodies and answers of `/api/work/…` in the OpenAPI document."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from runs.api.requests.pagination import object_of
from runs.api.work_texts import BODIES

_TEXT, _NUMBER, _WHOLE = {"type": "string"}, {"type": "number"}, {"type": "integer"}
_ERROR = {"type": "object", "properties": {"type": _TEXT, "message": _TEXT}}
_OUTCOME: dict[str, Any] = {
    "value": {"description": "The value, or the encoded text of a sealed one."},
    "codec": {**_TEXT, "description": "The codec of a sealed value; empty for JSON."},
    "pieces": {**_WHOLE, "description": "Instead of `value`: in how many pieces it is stored."},
    "error": {**_ERROR, "description": "The error of a failed step."},
}
_STEP = {
    "type": "object",
    "properties": {
        "position": _WHOLE,
        "key": _TEXT,
        "name": _TEXT,
        "kind": _TEXT,
        "state": {"type": "string", "enum": ["started", "done", "failed"]},
        **_OUTCOME,
    },
    "required": ["position", "key", "name", "kind", "state"],
}
_STEPS = {"type": "array", "items": _STEP, "description": "The journal of the run and of those that it continues."}
_AFTER = {"type": ["integer", "null"], "description": "`after` of the next page; null without one."}
_RESULT = {
    "type": "object",
    "properties": {
        "state": {"type": "string", "enum": ["run", "started", "done", "failed", "denied", "released"]},
        "attempt": {**_WHOLE, "description": "How often the step was started before."},
        "idempotency_key": {**_TEXT, "description": "The same for all starts of the step."},
        "input": {"description": "The arguments as an approver changed them."},
        "status": {**_TEXT, "description": "The status of a released run."},
        "reason": {**_TEXT, "description": "Why the run was released."},
        **_OUTCOME,
    },
}
_COMMANDS = {"type": "array", "items": {"type": "string", "enum": ["message", "pause", "signal", "stop"]}}

_REGISTERED = {
    "name": {**_TEXT, "description": "Name of the agent."},
    "version": {**_WHOLE, "description": "The stored version of the code, which new runs get."},
    "agent_version": {**_WHOLE, "description": "The version of the agent's definition."},
}
REGISTERED = object_of(
    {"agents": {"type": "array", "items": object_of(_REGISTERED), "description": "In the order of the request."}}
)
_RUN = {
    "id": _TEXT,
    "agent": {**_TEXT, "description": "Name of the agent."},
    "version": {**_WHOLE, "description": "The version of the code that the run needs."},
    "prompt": {"description": "The first message: a text, or a list of texts and media."},
    "title": _TEXT,
    "labels": {"type": "array", "items": _TEXT},
    "session_id": _TEXT,
    "parent_run_id": {"type": ["string", "null"]},
    "resumed_from": {"type": ["string", "null"], "description": "The run that it resumes."},
    "root_run_id": {**_TEXT, "description": "The first run of the lineage."},
    "settings": {"type": "object", "description": "Settings of the agent."},
}
_LEASE_S = {**_NUMBER, "description": "Seconds until the lease ends without a heartbeat."}
CLAIM = object_of(
    {
        "run": {**object_of(_RUN), "description": "The claimed run."},
        "epoch": {**_WHOLE, "description": "The fencing token: every further request about the run names it."},
        "lease_s": _LEASE_S,
        "renew_s": {**_NUMBER, "description": "Seconds between heartbeats."},
        "is_first": {"type": "boolean", "description": "Whether no process has held the run before."},
        "steps": _STEPS,
        "steps_after": _AFTER,
    }
)
HEARTBEAT = object_of(
    {
        "lease_s": _LEASE_S,
        "renew_s": {**_NUMBER, "description": "Seconds until the next heartbeat."},
        "poll_s": {**_NUMBER, "description": "Seconds after which to look for runs without an event of the stream."},
        "lost": {"type": "array", "items": _TEXT, "description": "Runs that this process must drop."},
        "commands": {
            "type": "object",
            "additionalProperties": _COMMANDS,
            "description": "By ID of the run: what people have asked of it.",
        },
    }
)
STEPS_PAGE = object_of({"steps": _STEPS, "steps_after": _AFTER})
_RESULTS = {
    "results": {"type": "array", "items": _RESULT, "description": "One for each operation, up to a release."},
    "commands": {**_COMMANDS, "description": "The pending commands of the run."},
}
STEPS_ANSWER = object_of(_RESULTS)
_ALONE = {"type": "boolean", "description": "Instead of results: send the operations in a request about this run."}
_OF_RUN = {"type": "object", "properties": {**_RESULTS, "alone": _ALONE}}
BATCH_ANSWER = object_of(
    {"runs": {"type": "array", "items": _OF_RUN, "description": "One for each run, in the order of the request."}}
)
PIECE = object_of({"data": {**_TEXT, "description": "A part of the JSON text, or of the text of a sealed value."}})
_STATE = {
    "thread": {"type": ["string", "null"], "description": "Name of its thread; null for a run."},
    "namespace": {**_TEXT, "description": "The sub-graph; empty for the graph itself."},
    "id": {**_TEXT, "description": "ID of the checkpoint."},
    "facts": {"type": "object", "description": "The facts with which it was stored."},
    "text": {**_TEXT, "description": "The checkpoint as stored."},
    "writes": {
        "type": "array",
        "items": object_of({"key": _TEXT, "facts": {"type": "object"}, "text": _TEXT}),
        "description": "Its pending writes.",
    },
}
_CHANNEL = {"thread": {"type": ["string", "null"]}, "namespace": _TEXT, "key": _TEXT, "text": _TEXT}
CHECKPOINTS = object_of(
    {
        "checkpoints": {"type": "array", "items": object_of(_STATE), "description": "Newest first."},
        "channels": {
            "type": "array",
            "items": object_of(_CHANNEL),
            "description": "The channel values that the checkpoints name, each once.",
        },
        "before": {"type": ["string", "null"], "description": "`before` of the next page; null without one."},
    }
)
_CHANGED = {
    "type": "object",
    "properties": {
        "thread": {**_TEXT, "description": "Of `put`: the thread, or the ID of the fork of a run."},
        "deferred": {
            "type": "boolean",
            "description": "Of `put`: true if nothing was stored, because writes alone do not fork a run.",
        },
        "threads": {**_WHOLE, "description": "Of `delete`: how many threads were deleted."},
        "values": {**_WHOLE, "description": "Of the others: how many values were copied or deleted."},
    },
}
CHANGED_THREADS = object_of(
    {"results": {"type": "array", "items": _CHANGED, "description": "One for each operation, in order."}}
)
RELEASED = object_of(
    {
        "status": {**_TEXT, "description": "The status of the run now."},
        "reason": {**_TEXT, "description": "The reason of a wait or a pause; otherwise empty."},
    }
)


def schema_of(body: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of a body for the OpenAPI document, without references."""
    schema = body.model_json_schema()
    definitions = {name: _described(each, name) for name, each in schema.pop("$defs", {}).items()}
    return {"application/json": _inlined(_described(schema, body.__name__), definitions)}


def _described(schema: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the schema of a class with the descriptions of its fields."""
    schema.pop("description", None)  # the docstring of the class, for developers
    for field, text in BODIES.get(name, {}).items():
        if field in schema["properties"]:
            schema["properties"][field]["description"] = text
    return schema


def _inlined(value: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_inlined(item, definitions) for item in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        beside = {name: each for name, each in value.items() if name != "$ref"}
        return {**_inlined(definitions[value["$ref"].rsplit("/", 1)[1]], definitions), **beside}
    # The mapping of a discriminator names definitions.
    return {name: _inlined(item, definitions) for name, item in value.items() if name not in ("title", "discriminator")}
