"""Payloads of a model turn: its start, its streamed text, its end."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue

from timeline.events.base import (
    Count,
    Millis,
    Money,
    Name,
    Payload,
    because,
    number,
    register,
    seconds,
    sentence,
)
from timeline.events.vocabulary import EventType


@register(EventType.LLM_TURN_START)
class LlmTurnStart(Payload):
    attempt: Count | None = None
    model: str | None = None
    call: Count | None = None

    def describe(self) -> str:
        retry = self.attempt and f"(attempt {self.attempt + 1})"
        return sentence("Asked the model", self.model, retry or None)


class _Delta(Payload):
    text: str
    index: Count | None = None
    token_count: Count | None = None


@register(EventType.LLM_TEXT_DELTA)
class LlmTextDelta(_Delta):
    def describe(self) -> str:
        return sentence("Model wrote", number(len(self.text), "character"))


@register(EventType.LLM_THINKING_DELTA)
class LlmThinkingDelta(_Delta):
    def describe(self) -> str:
        return sentence("Model thought", number(len(self.text), "character"))


@register(EventType.LLM_TEXT)
class LlmText(Payload):
    """A text that was not streamed; `index` says which block of the answer it is."""

    text: str | None = None
    index: Count | None = None
    token_count: Count | None = None

    def describe(self) -> str:
        return sentence("Model wrote", number(len(self.text or ""), "character"))


@register(EventType.LLM_THINKING)
class LlmThinking(Payload):
    text: str | None = None
    index: Count | None = None

    def describe(self) -> str:
        return sentence("Model thought", number(len(self.text or ""), "character"))


class ToolRequest(BaseModel):
    """A tool call as an external runner reports it at the end of its turn."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    id: Name
    name: Name
    arguments: JsonValue = None


@register(EventType.LLM_TURN_END)
class LlmTurnEnd(Payload):
    """`tool_calls` is a number from our engine, which has rows for them; external runners send the calls."""

    attempt: Count | None = None
    model: str | None = None
    finish_reason: str | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cache_read_tokens: Count | None = None
    cache_write_tokens: Count | None = None
    reasoning_tokens: Count | None = None
    cost_usd: Money | None = None
    duration_ms: Millis | None = None
    tool_calls: Count | list[ToolRequest] | None = None
    text: str | None = None
    thinking: str | None = None
    usage: dict[str, JsonValue] | None = None

    def describe(self) -> str:
        calls = len(self.tool_calls) if isinstance(self.tool_calls, list) else self.tool_calls
        asked = number(calls, "tool call") if calls else None
        return sentence("Model answered", asked and f"with {asked}", seconds(self.duration_ms))


@register(EventType.LLM_TURN_ABANDONED)
class LlmTurnAbandoned(Payload):
    """`usage` says what is known of the tokens that the provider counts for the call: some of them or none. It is
    absent where the provider refused the call."""

    attempt: Count | None = None
    reason: str | None = None
    model: str | None = None
    usage: Literal["partial", "unknown"] | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cache_read_tokens: Count | None = None
    cache_write_tokens: Count | None = None
    reasoning_tokens: Count | None = None
    cost_usd: Money | None = None
    duration_ms: Millis | None = None

    def describe(self) -> str:
        return sentence("Model turn abandoned", because(self.reason))
