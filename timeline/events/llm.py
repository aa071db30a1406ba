"""Payloads of the conversation: model calls with their streamed text, and messages that were added."""

from __future__ import annotations

from logging import DEBUG, WARNING
from typing import Annotated, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, JsonValue

from timeline.events.base import (
    Count,
    EventKind,
    EventType,
    Family,
    Millis,
    Money,
    Name,
    Payload,
    Show,
    because,
    number,
    seconds,
    sentence,
)
from timeline.reasons import FINISH_LABELS

MODEL = Family("llm", "Model calls", icon="assistant", show=Show.MESSAGES)


@EventKind(EventType.LLM_TURN_START, MODEL, opens_card=True)
class LlmTurnStart(Payload):
    """A model call started. `attempt` counts retries from 0, `call` the model calls of the conversation."""

    attempt: Count | None = None
    model: str | None = None
    call: Count | None = None

    def describe(self) -> str:
        retry = self.attempt and f"(attempt {self.attempt + 1})"
        return sentence("Model call", self.model and f"to {self.model}", "started", retry or None)


class _Delta(Payload):
    text: str
    index: Count | None = None
    token_count: Count | None = None


@EventKind(EventType.LLM_TEXT_DELTA, MODEL, is_chunk=True)
class LlmTextDelta(_Delta):
    """A chunk of streamed text. The joined chunks with the same `index` are a block of the response."""

    def describe(self) -> str:
        return sentence("Model wrote", number(len(self.text), "character"))


@EventKind(EventType.LLM_THINKING_DELTA, MODEL, is_chunk=True)
class LlmThinkingDelta(_Delta):
    """A chunk of streamed thinking."""

    def describe(self) -> str:
        return sentence("Model wrote", number(len(self.text), "character"), "of thinking")


@EventKind(EventType.LLM_TEXT, MODEL)
class LlmText(Payload):
    """A block of text that was not streamed. `index` is its position in the response."""

    text: str | None = None
    index: Count | None = None
    token_count: Count | None = None

    def describe(self) -> str:
        return sentence("Model wrote", number(len(self.text or ""), "character"))


@EventKind(EventType.LLM_THINKING, MODEL)
class LlmThinking(Payload):
    """A block of thinking that was not streamed. `index` is its position in the response."""

    text: str | None = None
    index: Count | None = None
    token_count: Count | None = None

    def describe(self) -> str:
        return sentence("Model wrote", number(len(self.text or ""), "character"), "of thinking")


class ToolRequest(BaseModel):
    """A requested tool call from an external runner, with the field names of its provider or of this vocabulary."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)

    id: Annotated[Name, Field(validation_alias=AliasChoices("id", "callId", "call_id", "toolCallId"))]
    name: Annotated[Name, Field(validation_alias=AliasChoices("name", "toolName", "tool_name"))]
    arguments: Annotated[JsonValue, Field(validation_alias=AliasChoices("arguments", "args", "input"))] = None


@EventKind(EventType.LLM_TURN_END, MODEL, ends_card=True, log_level=DEBUG)
class LlmTurnEnd(Payload):
    """A model call ended, and its response was stored with its tokens and cost.

    `tool_calls` is a number from the engine, and the list of calls from external runners. `cost_source` is absent if
    the cost was computed from published prices. `tier` is what changes the price, such as `fast` or `batch`.
    `finish_reason` is `stop`, `tool_call`, `length` (the answer was cut off), `content_filter` (it was refused) or
    `error`; runners may send the word of any provider.
    `cache_write_1h_tokens` are part of `cache_write_tokens`. `repeated`: the call was copied from or to another run,
    which counts it, so the event has neither tokens nor a cost. `continues`: these are further parts of the answer
    before, which its program wrote later, such as its tool calls.
    """

    attempt: Count | None = None
    model: str | None = None
    tier: str | None = None
    finish_reason: str | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cache_read_tokens: Count | None = None
    cache_write_tokens: Count | None = None
    cache_write_1h_tokens: Count | None = None
    reasoning_tokens: Count | None = None
    cost_usd: Money | None = None
    cost_source: Literal["reported", "project"] | None = None
    duration_ms: Millis | None = None
    tool_calls: Count | list[ToolRequest] | None = None
    text: str | None = None
    thinking: str | None = None
    usage: dict[str, JsonValue] | None = None
    repeated: bool | None = None
    continues: bool | None = None

    def describe(self) -> str:
        calls = len(self.tool_calls) if isinstance(self.tool_calls, list) else self.tool_calls
        requested = number(calls, "tool call") if calls else None
        fault = because(FINISH_LABELS.get(self.finish_reason or ""))
        return sentence("Model answered", requested and f"with {requested}", seconds(self.duration_ms), fault)


@EventKind(EventType.LLM_TURN_ABANDONED, MODEL, ends_card=True, log_level=WARNING)
class LlmTurnAbandoned(Payload):
    """A model call ended without a response. Its streamed text is not part of the conversation.

    `usage` is `partial` or `unknown` if the provider bills tokens for the call. It is absent if the provider refused
    the call.
    """

    attempt: Count | None = None
    reason: str | None = None
    model: str | None = None
    tier: str | None = None
    usage: Literal["partial", "unknown"] | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cache_read_tokens: Count | None = None
    cache_write_tokens: Count | None = None
    cache_write_1h_tokens: Count | None = None
    reasoning_tokens: Count | None = None
    cost_usd: Money | None = None
    cost_source: Literal["reported", "project"] | None = None
    duration_ms: Millis | None = None

    def describe(self) -> str:
        return sentence("Model call abandoned", because(self.reason))


@EventKind(EventType.LLM_USAGE, MODEL, in_filter=False, is_reserved=True)
class LlmUsage(Payload):
    """A program reported tokens that none of its model responses includes, such as those used by internal calls."""

    model: str
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cache_read_tokens: Count | None = None
    cache_write_tokens: Count | None = None
    cache_write_1h_tokens: Count | None = None
    cost_usd: Money | None = None
    cost_source: Literal["reported", "project"] | None = None

    def describe(self) -> str:
        tokens = number((self.input_tokens or 0) + (self.output_tokens or 0), "further token")
        return sentence("The program used", tokens, f"of {self.model}")


@EventKind(EventType.LLM_USAGE_MOVED, MODEL, in_filter=False, is_reserved=True)
class LlmUsageMoved(Payload):
    """Model calls that two runs report are now counted in the other run: in the original, once it is known.

    The tokens and the cost are the run's totals after the change. `run_id` is the other run.
    """

    run_id: Name
    calls: Count
    counted: Literal["here", "there"]
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cache_read_tokens: Count | None = None
    cache_write_tokens: Count | None = None
    cache_write_1h_tokens: Count | None = None
    reasoning_tokens: Count | None = None
    cost_usd: Money | None = None

    def describe(self) -> str:
        where = "in this run" if self.counted == "here" else f"in the run {self.run_id}"
        return sentence("The usage of", number(self.calls, "model call"), f"is counted {where} from now on")


MESSAGE = Family("message", "Messages", icon="user", show=Show.MESSAGES)

#: Role → the beginning of the sentence about an added message.
_SPEAKERS = {
    "system": "System message",
    "user": "User message",
    "assistant": "Assistant message",
    "tool_result": "Tool result",
}


@EventKind(EventType.MESSAGE_ADDED, MESSAGE)
class MessageAdded(Payload):
    """A message was added to the conversation.

    The engine sends a `preview`; external runners send the full `content`. `unknown_blocks`: the number of blocks in a
    form that is not known, of which the message has the raw text.
    """

    role: Literal["system", "user", "assistant", "tool_result"]
    position: Count | None = None
    preview: str | None = None
    truncated: bool = False
    bytes: Count | None = None
    unknown_blocks: Count | None = None
    content: JsonValue = None

    def describe(self) -> str:
        size = number(self.bytes, "byte")
        return sentence(_SPEAKERS[self.role], "added", size and f"({size})")
