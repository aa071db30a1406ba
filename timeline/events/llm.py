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
    """The model was asked. `attempt` counts retries from 0, `call` the model calls of the conversation."""

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
    """A piece of the model's text as it is streamed; the deltas of block `index`, joined, are the block."""

    def describe(self) -> str:
        return sentence("Model wrote", number(len(self.text), "character"))


@register(EventType.LLM_THINKING_DELTA)
class LlmThinkingDelta(_Delta):
    """A piece of the model's thinking as it is streamed."""

    def describe(self) -> str:
        return sentence("Model thought", number(len(self.text), "character"))


@register(EventType.LLM_TEXT)
class LlmText(Payload):
    """A block of text that was not streamed; `index` is its place in the answer."""

    text: str | None = None
    index: Count | None = None
    token_count: Count | None = None

    def describe(self) -> str:
        return sentence("Model wrote", number(len(self.text or ""), "character"))


@register(EventType.LLM_THINKING)
class LlmThinking(Payload):
    """A block of thinking that was not streamed; `index` is its place in the answer."""

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
    """The model's answer was stored, with its tokens and cost.

    `tool_calls` is a number if the engine executed the run, which has rows for them; external runners send the calls.
    """

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
    """A model call broke off; text that it streamed is no part of the conversation.

    `usage` says what is known of the tokens that the provider bills for it: `partial` or `unknown`. It is absent if
    the provider refused the call.
    """

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
