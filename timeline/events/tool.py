"""Payloads of tool calls: start, output, end, and the resolution of an unknown outcome."""

from __future__ import annotations

import json
from collections.abc import Mapping
from logging import DEBUG
from typing import cast

from pydantic import JsonValue

from timeline.events.base import Count, EventKind, Family, Millis, Moment, Name, Payload, Show, by, seconds, sentence
from timeline.events.vocabulary import EventType
from timeline.preview import preview

TOOL = Family("tool", "Tool calls", icon="tool", show=Show.TOOLS)

#: Bytes of the arguments in the summary of a call.
SUMMARY_BYTES = 120


@EventKind(EventType.TOOL_START, TOOL, opens_card=True, log_level=DEBUG)
class ToolStart(Payload):
    """A tool call started. `arguments` is a preview from the engine, and complete from external runners.

    A runner may omit `tool_name` if an answer has requested the call, or `call_id`: the oldest requested call of the
    tool that has not started is meant, or else a new one. `inferred` says so; the stored event always has an ID.
    """

    call_id: str = ""
    inferred: bool = False
    tool_name: Name | None = None
    attempt: Count | None = None
    effect: str | None = None
    arguments: JsonValue = None
    #: The beginning of the arguments, from a runner that does not send all of them.
    args_summary: str | None = None

    def describe(self) -> str:
        return sentence(
            f"Started {self.tool_name or 'a tool'}", f"(attempt {self.attempt + 1})" if self.attempt else None
        )


@EventKind(EventType.TOOL_OUTPUT, TOOL, is_chunk=True)
class ToolOutput(Payload):
    """Output of a running tool. If `late` is set, another worker has taken over the run and the output is discarded.

    Without `call_id`, the oldest open call of the tool is meant; `inferred` says so.
    """

    call_id: str | None = None
    inferred: bool = False
    tool_name: str | None = None
    stream: str | None = None
    text: str | None = None
    late: bool = False

    def describe(self) -> str:
        return sentence("Late tool output" if self.late else "Tool output", self.stream and f"on {self.stream}")


@EventKind(EventType.TOOL_END, TOOL, ends_card=True, is_outcome=True, log_level=DEBUG)
class ToolEnd(Payload):
    """A tool call ended.

    The engine sends a `preview` of the output; external runners send the full `output`. Without `call_id`, the oldest
    open call of the tool is meant, or a new one without any; `inferred` says so, and the stored event has an ID.
    """

    call_id: str = ""
    inferred: bool = False
    tool_name: str | None = None
    status: str | None = None
    duration_ms: Millis | None = None
    preview: str | None = None
    truncated: bool = False
    bytes: Count | None = None
    error: str | None = None
    output: JsonValue = None
    #: The beginning of the call's arguments, so that a list can name the call without its start.
    args_summary: str | None = None

    def describe(self) -> str:
        outcome = "failed" if self.error else self.status or "ended"
        return sentence(self.tool_name or "Tool", outcome, seconds(self.duration_ms))


_RESOLUTIONS = {"done": "marked as done", "failed": "marked as failed", "retry": "scheduled to run again"}


@EventKind(EventType.TOOL_OUTCOME_RESOLVED, TOOL, is_reserved=True, updates_call=True)
class ToolOutcomeResolved(Payload):
    """A user or a program resolved the unknown outcome of a call: `done`, `failed`, or `retry` to run it again."""

    call_id: Name
    tool_name: str | None = None
    decision: Name
    by: str | None = None
    at: Moment | None = None

    def describe(self) -> str:
        resolution = _RESOLUTIONS.get(self.decision, self.decision)
        note = "" if self.decision == "retry" else ", not observed"
        return f"{sentence(self.tool_name or 'Tool call', resolution, by(self.by))}{note}"


def args_summary(arguments: object) -> str:
    """Return the beginning of a call's arguments as text."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    return preview(text, SUMMARY_BYTES)[0]


def summary(payload: Mapping[str, object]) -> dict[str, JsonValue]:
    """Return the summary of a call for lists, from the payload of its start or end."""
    arguments = payload.get("args_summary", payload.get("arguments"))
    return {
        "tool": cast("JsonValue", payload.get("tool_name")),
        "argsSummary": None if arguments is None else args_summary(arguments),
        "durationMs": cast("JsonValue", payload.get("duration_ms")),
    }
