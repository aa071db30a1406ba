"""docs/reference/api: every request of the HTTP API, a page for each tag of its OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agentops.reference.json_types import JsonSchema, type_of
from agentops.reference.markdown import anchor_of, code, flat, page, table
from runs.api.docs import document

INTRODUCTION = """\
All addresses begin with the address of the site. A running site shows the same, to try out, at `/api/docs`; the OpenAPI
document is at `/api/schema`. [The guide](../../guides/api.md) explains keys, pages, errors, repeats and limits.

`{project}` is a project's ID or slug; headings leave `/api/projects/{project}` out. Times are UTC in ISO 8601, IDs are
UUIDs. Unknown parameters and fields are refused."""

_BACK = "[All requests](index.md), with what holds for each of them."
PREFIX = "/api/projects/{project}"
#: Schemas referenced by fields and responses.
SHARED = ("RunFilter", "ResumedOne", "SkippedOne", "UsageTotals", "Problem", "RefusalFault")


@dataclass(frozen=True)
class Operation:
    """One request: its method, its path, and its entry in the OpenAPI document."""

    method: str
    path: str
    described: JsonSchema

    @property
    def title(self) -> str:
        return f"{self.method} {self.path.removeprefix(PREFIX) or self.path}"

    @property
    def tag(self) -> str:
        tag: str = self.described["tags"][0]
        return tag


def api_pages() -> dict[str, str]:
    """Return the pages by the names of their files: an index, and a page for each tag."""
    openapi = json.loads(document())
    schemas = openapi["components"]["schemas"]
    operations = [
        Operation(method.upper(), path, described)
        for path, methods in openapi["paths"].items()
        for method, described in methods.items()
    ]
    by_tag: dict[str, list[Operation]] = {}
    for operation in operations:
        by_tag.setdefault(operation.tag, []).append(operation)
    pages = {"index.md": _index(by_tag, schemas)}
    for tag, some in by_tag.items():
        blocks = [block for each in some for block in _operation(each, schemas)]
        pages[f"{tag}.md"] = page(f"HTTP API: {tag}", _BACK, *blocks)
    return pages


def _index(by_tag: dict[str, list[Operation]], schemas: JsonSchema) -> str:
    """Return the page with the purpose of every request, and the schemas that all pages refer to."""
    blocks = []
    for tag, operations in by_tag.items():
        rows = [
            [f"[{code(each.title)}]({tag}.md#{anchor_of(each.title)})", flat(each.described["summary"])]
            for each in operations
        ]
        blocks += [f"## [{tag}]({tag}.md)", table(["Request", "Purpose"], rows)]
    shared = [f"## {name}\n\n{schemas[name].get('description', '')}\n\n{_fields(schemas[name])}" for name in SHARED]
    return page("HTTP API", INTRODUCTION, *blocks, *shared)


def _operation(operation: Operation, schemas: JsonSchema) -> Iterator[str]:
    described = operation.described
    yield f"## {code(operation.title)}"
    yield "\n\n".join(filter(None, [described["summary"], described.get("description", "")]))
    yield _part("Parameters", ["Parameter", "In", "Type", "Meaning"], map(_parameter, described.get("parameters", ())))
    if "requestBody" in described:
        # Of several media types, the first contains the fields.
        media, content = next(iter(described["requestBody"]["content"].items()))
        body = _resolve(content["schema"], schemas)
        title = "**Body**" if media == "application/json" else f"**Body** ({media})"
        yield "\n\n".join(filter(None, [title, body.get("description"), _fields(body) or "No fields."]))
    answers = {status: answer for status, answer in described["responses"].items() if int(status) < 400}
    yield _part("Answers", ["Status", "Meaning"], [[code(n), flat(each["description"])] for n, each in answers.items()])
    yield _first_body(answers, schemas)
    refusals = ", ".join(code(status) for status in described["responses"] if int(status) >= 400)
    yield f"Refusals: {refusals}, each with a [problem](index.md#problem)."


def _first_body(answers: JsonSchema, schemas: JsonSchema) -> str:
    """Return the fields of the first response with a body; for a list, the fields of a row."""
    content: JsonSchema = next((answer["content"] for answer in answers.values() if "content" in answer), {})
    for media, described in content.items():
        schema = _resolve(described["schema"], schemas)
        rows = schema.get("properties", {}).get("results", {}).get("items")
        title = "Each row of results" if rows else f"Fields of the answer ({media})"
        fields = _fields({**(_resolve(rows, schemas) if rows else schema), "required": []})
        if fields:
            return f'<details markdown="1">\n<summary>{title}</summary>\n\n{fields}\n\n</details>'
    return ""


def _part(title: str, headers: list[str], rows: Any) -> str:
    content = table(headers, rows)
    return f"**{title}**\n\n{content}" if content else ""


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


def _resolve(schema: JsonSchema, schemas: JsonSchema) -> JsonSchema:
    """Return the schema with its fields; for alternatives, the first one."""
    resolved: JsonSchema = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    alternatives = resolved.get("oneOf") or (resolved.get("anyOf") if "properties" not in resolved else None)
    return _resolve(alternatives[0], schemas) if alternatives else resolved
