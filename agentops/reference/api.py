"""docs/reference/api.md: every request of the HTTP API, from its OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agentops.reference.json_types import JsonSchema, type_of
from agentops.reference.markdown import code, flat, page, table
from runs.api.docs import document

INTRODUCTION = """\
All addresses begin with the address of the site. A running site shows the same, to try out, at `/api/docs`; the OpenAPI
document is at `/api/schema`. [The guide](../guides/api.md) explains keys, pages, errors, repeats and limits.

`{project}` is a project's ID or slug. Times are UTC in ISO 8601, IDs are UUIDs. Unknown parameters and fields are
refused."""


def api() -> str:
    made = json.loads(document())
    schemas = made["components"]["schemas"]
    operations = [
        (path, method.upper(), operation)
        for path, methods in made["paths"].items()
        for method, operation in methods.items()
    ]
    summary = table(
        ["Request", "Purpose"],
        [
            [f"[`{method} {path}`](#{_anchor(operation)})", flat(operation["summary"])]
            for path, method, operation in operations
        ],
    )
    blocks = [block for each in operations for block in _operation(*each, schemas)]
    return page("HTTP API", INTRODUCTION, summary, *blocks, "## Problem", _fields(schemas["Problem"]))


def _anchor(operation: JsonSchema) -> str:
    return str(operation["operationId"]).lower()


def _operation(path: str, method: str, operation: JsonSchema, schemas: JsonSchema) -> Iterator[str]:
    yield f"## {operation['operationId']}"
    yield f"```text\n{method} {path}\n```"
    yield "\n\n".join(filter(None, [operation["summary"], operation.get("description", "")]))
    yield _part("Parameters", ["Parameter", "In", "Type", "Meaning"], map(_parameter, operation["parameters"]))
    body = operation.get("requestBody")
    if body is not None:
        schema = _resolved(body["content"]["application/json"]["schema"], schemas)
        yield f"**Body**\n\n{_fields(schema) or 'None.'}"
    yield from _answer(operation["responses"], schemas)
    refusals = [status for status in operation["responses"] if int(status) >= 400]
    yield f"Refusals: {', '.join(map(code, refusals))}, each with a [problem](#problem)."


def _answer(responses: JsonSchema, schemas: JsonSchema) -> Iterator[str]:
    good = {status: answer for status, answer in responses.items() if int(status) < 400}
    yield _part(
        "Answers",
        ["Status", "Meaning"],
        [[code(status), flat(answer["description"])] for status, answer in good.items()],
    )
    for answer in good.values():
        for media, content in answer.get("content", {}).items():
            schema = _resolved(content["schema"], schemas)
            rows = schema.get("properties", {}).get("results", {}).get("items")
            title = "Each row of `results`" if rows else f"Fields of the answer (`{media}`)"
            fields = _fields({**(_resolved(rows, schemas) if rows else schema), "required": []})
            yield f"<details>\n<summary>{_html(title)}</summary>\n\n{fields}\n\n</details>" if fields else ""
            return


def _part(title: str, headers: list[str], rows: Any) -> str:
    shown = table(headers, rows)
    return f"**{title}**\n\n{shown}" if shown else ""


def _parameter(parameter: JsonSchema) -> list[str]:
    required = " (required)" if parameter.get("required") and parameter["in"] != "path" else ""
    name = code(parameter["name"]) + required
    return [name, parameter["in"], type_of(parameter.get("schema", {})), flat(parameter.get("description"))]


def _fields(schema: JsonSchema) -> str:
    required = schema.get("required", [])
    rows = [
        [code(name) + (" (required)" if name in required else ""), type_of(field), flat(field.get("description"))]
        for name, field in schema.get("properties", {}).items()
    ]
    return table(["Field", "Type", "Meaning"], rows)


def _resolved(schema: JsonSchema, schemas: JsonSchema) -> JsonSchema:
    resolved: JsonSchema = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    return resolved


def _html(text: str) -> str:
    return text.replace("`", "")
