"""docs/reference/api and events.md: every request of the HTTP API, and every event type with its fields.

They are written from the OpenAPI document, with a page for each tag, and from the registry in timeline/events.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType

from agentops.reference.markdown import JsonSchema, anchor_of, code, flat, page, table, type_of
from runs.api.docs import document
from timeline.event_vocabularies import ERROR_TYPES
from timeline.events import FAMILIES, Payload
from timeline.events.base import REGISTRY

INTRODUCTION = """\
All addresses begin with the address of the site. A running site shows the same, to try out, at `/api/docs`; the OpenAPI
document is at `/api/schema`. [The guide](../../guides/api.md) explains keys, pages, errors, repeats and limits.

`{project}` is a project's ID or slug; headings leave `/api/projects/{project}` out. Times are UTC in ISO 8601, IDs are
UUIDs. Unknown parameters and fields are refused."""

_BACK = "[All requests](index.md), with the rules for all of them."
PREFIX = "/api/projects/{project}"
#: Schemas that several pages refer to. The index shows their fields.
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


def api_pages() -> dict[str, str]:
    """Return the pages by the names of their files: an index, and a page for each tag."""
    openapi = json.loads(document())
    schemas = openapi["components"]["schemas"]
    by_tag: dict[str, list[Operation]] = {}
    for path, methods in openapi["paths"].items():
        for method, described in methods.items():
            by_tag.setdefault(described["tags"][0], []).append(Operation(method.upper(), path, described))
    pages = {"index.md": _index(by_tag, schemas)}
    for tag, operations in by_tag.items():
        blocks = [block for operation in operations for block in _operation(operation, schemas)]
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
    """Yield the blocks of the section about a request."""
    described = operation.described
    yield f"## {code(operation.title)}"
    yield "\n\n".join(filter(None, [described["summary"], described.get("description", "")]))
    parameters = map(_parameter, described.get("parameters", ()))
    yield _titled_table("Parameters", ["Parameter", "In", "Type", "Meaning"], parameters)
    if "requestBody" in described:
        # If there are several media types, the schema of the first one has the fields.
        media, content = next(iter(described["requestBody"]["content"].items()))
        body = _resolve(content["schema"], schemas)
        title = "**Body**" if media == "application/json" else f"**Body** ({media})"
        yield "\n\n".join(filter(None, [title, body.get("description"), _fields(body) or "No fields."]))
    answers = {status: answer for status, answer in described["responses"].items() if int(status) < 400}
    meanings = [[code(status), flat(answer["description"])] for status, answer in answers.items()]
    yield _titled_table("Answers", ["Status", "Meaning"], meanings)
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


def _titled_table(title: str, headers: list[str], rows: Iterable[list[str]]) -> str:
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
    """Return the schema that a reference names; of alternatives, the first one."""
    resolved: JsonSchema = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    alternatives = resolved.get("oneOf") or (resolved.get("anyOf") if "properties" not in resolved else None)
    return _resolve(alternatives[0], schemas) if alternatives else resolved


EVENTS_INTRODUCTION = """\
A run's log is a list of events. An event never changes, and its `seq` numbers are contiguous from 1. This is one,
as the API sends it:

```json
{"seq": 12, "event_id": "01a20348-4d7f-7610-8020-944577c2f630", "runId": "01a20348-4d6f-7608-b04f-2d908c637df1",
 "runKind": "session", "phase": "running", "type": "tool.start", "ts": "2026-11-22T12:43:22.104000Z", "step": 1,
 "nodeId": "reviewer", "payload": {"call_id": "toolu_01", "tool_name": "read_file",
  "arguments": "{\\"path\\":\\"a.py\\"}", "message": "Started read_file", "tool": "read_file",
  "argsSummary": "{\\"path\\":\\"a.py\\"}", "durationMs": null},
 "source": "worker"}
```

Every payload may contain `message`, a sentence for people; if the sender gave none, it is written from the fields.
`tool.start` and `tool.end` are sent with `tool`, `argsSummary` (the beginning of the arguments) and `durationMs` too.
Fields that are not required are omitted if they have no value. What a runner sends beside the fields of a type is in
`extra`, by its own names; events of the sender's own types, which begin with `x.`, hold anything. Secrets are masked
before an event is stored.

A *terminal* event ends the log: a stream closes after it, and what is stored later is marked as late. A *reserved*
event is written by agentops only and is not accepted from external runners. Copied from a log, with its `seq`, it is
stored under its name with `x.` before it, as an event that decides nothing.

## Agent dialect

Runners may also send, and readers get with `?dialect=agent`, events with camel case names and times in milliseconds:
`agent:start`, `agent:text`, `agent:text:delta`, `agent:thinking`, `agent:thinking:delta`, `agent:tool`, `agent:error`,
`agent:complete`, `flow:*`, `node:*`, `edge:*`, `command:received` and `child_job.*`.

- Each event has `timestamp`, and `ts` with the same value. A field without a value is left out.
- Fields of `agent:` events are flat in the event; those of others are in `payload`. Both places are accepted.
- Prompts, and inputs and outputs of tools, are whole, without previews.
- `agent:tool` is `tool.start` and `tool.end`; without `toolCallId`, the oldest open call of the tool is meant.
- `agent:start.sessionId` is the session that the start names, or the run's ID. `agent:complete.result` is a text.
- A failure is one `agent:error`. Failed runs, failed tool calls of agentops' own runs and of imports, and what a person
  refuses or stops have one beside their event, with the same `seq` and an `eventId` that ends in `:error`. Runners
  report failed calls by themselves. Tell events apart by `eventId`; `seq` is only the position from which to read on.
- The log of a flow has no `agent:` events: its nodes' runs have them.
- `child_job.` and any word is `child_run.phase`; `failed`, `stopped` and `cancelled` are `child_run.completed`.
- Verbs may be sent in the present tense: `node:start` is `node:started`. `node:error` is `node:failed`, and
  `loop:iterate` is `edge:iterated`. Readers get the second form.
- Event types without a name in the dialect keep theirs. `seq` counts the same events.

| `errorType` | Meaning | Types of the log |
| --- | --- | --- |
{ERROR_ROWS}

Every other error type of the log keeps its name, such as `server_error`, `overloaded`, `unauthorized`,
`out_of_credits`, `context_too_long`, `invalid_request` and `engine_error`. `error` is one without a type.

JSON Schemas: [events](events.schema.json) and [agent dialect](agent-events.schema.json), at `/api/schema/events` and
`/api/schema/events?dialect=agent` on a running site."""


#: The meanings of the error types in the agent dialect.
_MEANINGS = {
    "error_tool_use": "A tool call failed.",
    "error_max_turns": "The run reached its step limit.",
    "error_user": "A person refused a call, or stopped the run.",
    "network_error": "The model's provider could not be reached in time.",
    "rate_limit": "The model's provider limits the rate of requests.",
}


def events_page() -> str:
    rows = [f"| `{name}` | {_MEANINGS[name]} | {', '.join(map(code, types))} |" for name, types in ERROR_TYPES.items()]
    introduction = EVENTS_INTRODUCTION.replace("{ERROR_ROWS}", "\n".join(rows))
    return page("Events", introduction, *(_family(family) for family in FAMILIES))


def _family(module: ModuleType) -> str:
    """Return the section about the event types of a module of timeline/events. Its title is that of the docstring."""
    title = flat(module.__doc__ or "").removesuffix(".")
    title = title.removeprefix("Payloads of ").removeprefix("Payload of ").partition(":")[0]
    members = [cls for cls in REGISTRY.values() if sys.modules[cls.__module__] is module]
    return "\n\n".join([f"## {title[0].upper()}{title[1:]}", *(_event(cls) for cls in members)])


def _event(cls: type[Payload]) -> str:
    """Return the section about an event type. Raises `LookupError` if its class has no docstring."""
    text = vars(cls).get("__doc__")
    if not text:
        raise LookupError(f"{cls.__name__} of timeline/events has no docstring")
    properties = ["terminal"] * cls.event_kind.is_terminal + ["reserved"] * cls.event_kind.is_reserved
    suffix = f" *({', '.join(properties)})*" if properties else ""
    return "\n\n".join(filter(None, [f"### `{cls.event_type}`", inspect.cleandoc(text) + suffix, _payload_fields(cls)]))


def _payload_fields(cls: type[Payload]) -> str:
    schema = cls.model_json_schema(by_alias=False)
    required = schema.get("required", [])
    rows = [
        [code(name), _type_of(field), "yes" if name in required else ""]
        for name, field in schema["properties"].items()
        if name not in ("message", "extra")
    ]
    return table(["Field", "Type", "Required"], rows)


def _type_of(field: JsonSchema) -> str:
    """Return the type without `null`: a field without a value is omitted."""
    if "anyOf" in field:
        field = {**field, "anyOf": [each for each in field["anyOf"] if each.get("type") != "null"]}
    return type_of(field)
