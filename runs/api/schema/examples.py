"""Examples for the OpenAPI document, generated from its schemas, so that they are never outdated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runs.api.problems import JSON
from runs.api.schema.document import COMPONENTS

#: Example values by field name; the type decides for all others.
BY_NAME: dict[str, Any] = {
    "agent_id": "reviewer",
    "flow_id": "review",
    "buckets": {
        "fresh_input": 400,
        "cache_read": 600,
        "cache_write": 0,
        "cache_write_1h": 0,
        "visible_output": 200,
        "reasoning": 100,
    },
    "call_id": "toolu_01",
    "code": "run_not_paused",
    "context": "llm_stream",
    "cost_source": "computed",
    "created_by": "user:ada",
    "effect": "read",
    "error_message": "",
    "error_type": "",
    "event_id": "~412",
    "input": {"path": "README.md"},
    "labels": ["nightly"],
    "message": "Model call started",
    "model": "claude-sonnet-5-5",
    "name": "Shop",
    "next": None,
    "nodeId": "reviewer",
    "output": "# agentops",
    "parent_run_id": None,
    "payload": {"message": "Model call started"},
    "outcome": "applied",
    "details": "status_code: 429, model_name: gpt-5, body: None",
    "phase": "running",
    "previous": None,
    "prompt": "Find the slow query.",
    "provider": "llm",
    "reason": "only paused runs can be resumed; this one is completed",
    "result": "",
    "role": "assistant",
    "run_kind": "session",
    "run_status": "running",
    "runKind": "session",
    "session_id": "",
    "slug": "shop",
    "source": "native",
    "status": "paused",
    "status_reason": "max_steps",
    "summary": "",
    "title": "Find the slow query.",
    "tool_name": "read_file",
    "tools": ["read_file"],
    "type": "llm.turn.start",
}
_ID = "01a1f9cd-b2e1-70db-8478-b8d85dac710b"
_BY_FORMAT = {
    "uuid": _ID,
    "date-time": "2026-11-20T16:45:00.000000Z",
    "decimal": "0.0123",
    "uri-reference": "/api/projects/shop/agent-runs?cursor=…",
}
_BY_TYPE: dict[str, Any] = {"string": "text", "integer": 7, "number": 12.5, "boolean": False, "object": {}, "array": []}


def add_examples(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Postprocessing hook of drf-spectacular: add an example to each answer, and what all operations share."""
    components = result["components"]
    for name, added in COMPONENTS.items():
        components[name] = components.get(name, {}) | added
    for operation in (one for methods in result["paths"].values() for one in methods.values()):
        for answer in operation["responses"].values():
            content = answer.get("content", {}).get(JSON)
            if content is not None:
                content["example"] = example_of(content["schema"], components["schemas"])
    return result


def example_of(schema: Mapping[str, Any], schemas: Mapping[str, Any], name: str = "") -> Any:
    """Return a value that the schema allows."""
    if "$ref" in schema:
        return example_of(schemas[schema["$ref"].rpartition("/")[2]], schemas, name)
    # drf-spectacular writes a reference with a description as allOf with one branch.
    branches = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if branches:
        return example_of(branches[0], schemas, name)
    if "enum" in schema and BY_NAME.get(name) not in schema["enum"]:
        return schema["enum"][0]
    if "properties" in schema:
        return {key: example_of(inner, schemas, key) for key, inner in schema["properties"].items()}
    kinds = schema.get("type", "string")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds[0] == "array" and "items" in schema and not isinstance(BY_NAME.get(name), list):
        return [example_of(schema["items"], schemas)]
    if name in BY_NAME and "format" not in schema:
        return BY_NAME[name]
    if BY_NAME.get(name, "") is None and "null" in kinds:
        return None
    return _BY_FORMAT.get(schema.get("format", ""), _BY_TYPE[kinds[0]])
