"""docs/reference/events.md: every event type and the fields of its payload, from the registry in timeline/events."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType

from agentops.reference.json_types import JsonSchema, type_of
from agentops.reference.markdown import code, flat, page, table
from timeline.dialects.agent_names import ERROR_TYPES
from timeline.events import FAMILIES, Payload
from timeline.events.base import REGISTRY

INTRODUCTION = """\
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
    introduction = INTRODUCTION.replace("{ERROR_ROWS}", "\n".join(rows))
    return page("Events", introduction, *(_family(family) for family in FAMILIES))


def _family(module: ModuleType) -> str:
    title = flat(module.__doc__ or "").removesuffix(".")
    title = title.removeprefix("Payloads of ").removeprefix("Payload of ").partition(":")[0]
    members = [cls for cls in REGISTRY.values() if sys.modules[cls.__module__] is module]
    return "\n\n".join([f"## {title[0].upper()}{title[1:]}", *(_event(cls) for cls in members)])


def _event(cls: type[Payload]) -> str:
    text = vars(cls).get("__doc__")
    if not text:
        raise LookupError(f"{cls.__name__} of timeline/events has no docstring")
    marks = ["terminal"] * cls.event_kind.is_terminal + ["reserved"] * cls.event_kind.is_reserved
    suffix = f" *({', '.join(marks)})*" if marks else ""
    return "\n\n".join(filter(None, [f"### `{cls.event_type}`", inspect.cleandoc(text) + suffix, _fields(cls)]))


def _fields(cls: type[Payload]) -> str:
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
