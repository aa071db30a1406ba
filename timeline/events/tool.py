"""Payloads of a tool call: its start, its output while it works, its end."""

from __future__ import annotations

from pydantic import JsonValue

from timeline.events.base import Count, Millis, Moment, Name, Payload, by, register, seconds, sentence
from timeline.events.vocabulary import EventType


@register(EventType.TOOL_START)
class ToolStart(Payload):
    """A tool call started. `arguments` is a preview from the engine, and the whole arguments from external runners."""

    call_id: Name
    tool_name: Name
    attempt: Count | None = None
    effect: str | None = None
    arguments: JsonValue = None

    def describe(self) -> str:
        return sentence(f"Started {self.tool_name}", f"(attempt {self.attempt + 1})" if self.attempt else None)


@register(EventType.TOOL_OUTPUT)
class ToolOutput(Payload):
    """Output of a tool that is still running. `late`: another worker had taken over the run, so it is no result."""

    call_id: str | None = None
    stream: str | None = None
    text: str | None = None
    late: bool = False

    def describe(self) -> str:
        return sentence("Late tool output" if self.late else "Tool output", self.stream and f"on {self.stream}")


@register(EventType.TOOL_END)
class ToolEnd(Payload):
    """A tool call ended.

    The engine sends a preview of the call's row. External runners send the `output` that the row is made from.
    """

    call_id: Name
    tool_name: str | None = None
    status: str | None = None
    duration_ms: Millis | None = None
    preview: str | None = None
    truncated: bool = False
    bytes: Count | None = None
    error: str | None = None
    output: JsonValue = None

    def describe(self) -> str:
        outcome = "failed" if self.error else self.status or "ended"
        return sentence(self.tool_name or "Tool", outcome, seconds(self.duration_ms))


_DECLARED = {"done": "reported done", "failed": "reported failed", "retry": "to be run again"}


@register(EventType.TOOL_OUTCOME_RESOLVED)
class ToolOutcomeResolved(Payload):
    """Somebody resolved a call whose outcome was unknown: `done`, `failed`, or `retry` to run it again."""

    call_id: Name
    tool_name: str | None = None
    decision: Name
    by: str | None = None
    at: Moment | None = None

    def describe(self) -> str:
        declared = _DECLARED.get(self.decision, self.decision)
        seen = None if self.decision == "retry" else ", not observed"
        return f"{sentence(self.tool_name or 'Tool call', declared, by(self.by))}{seen or ''}"
