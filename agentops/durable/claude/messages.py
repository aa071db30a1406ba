"""The answers of the model, as the frames of the program have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from claude_agent_sdk import AssistantMessage, TextBlock, ThinkingBlock, ToolUseBlock

from agentops.durable.answers import Answer, Call, Effect, FinishReason, Usage

#: The tool with which the model asks a person.
ASK = "AskUserQuestion"
_REASONS: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "tool_call",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}


@dataclass(eq=False)
class ModelMessage:
    """An answer of the model, whose blocks arrive one by one."""

    id: str
    model: str = ""
    blocks: list[Any] = field(default_factory=list)
    #: The IDs of the transcript's entries with its blocks.
    uuids: set[str] = field(default_factory=set)
    usage: dict[str, Any] = field(default_factory=dict)
    stop_reason: str | None = None
    #: Whether its end is reported, and was.
    is_streamed: bool = False
    has_ended: bool = False
    #: An error that the program reports in place of an answer.
    error: str = ""

    @property
    def uses_tools(self) -> bool:
        """Whether it requests tool calls."""
        return bool(self.call_ids)

    @property
    def call_ids(self) -> list[str]:
        """The IDs of the tool calls that it requests."""
        return [block.id for block in self.blocks if isinstance(block, ToolUseBlock)]

    def add(self, message: AssistantMessage) -> None:
        """Add the blocks of a frame."""
        self.blocks += message.content
        self.model = self.model or message.model
        self.usage = {**(message.usage or {}), **self.usage}
        self.stop_reason = self.stop_reason or message.stop_reason
        if message.uuid:
            self.uuids.add(message.uuid)
        if message.error is not None or message.model == "<synthetic>":
            self.error = message.error or "error"

    def note_usage(self, usage: Mapping[str, Any] | None) -> None:
        """Note the tokens in an event of the stream. Later events are more exact."""
        self.usage |= {name: value for name, value in (usage or {}).items() if value is not None}

    @property
    def text(self) -> str:
        """Its text."""
        return "".join(block.text for block in self.blocks if isinstance(block, TextBlock))

    def as_answer(self, effect_of: Callable[[str], Effect], raw: Mapping[str, Any]) -> Answer:
        """Return it as an answer. `effect_of`: of a tool, by its name. Questions to people are no calls."""
        requested = [block for block in self.blocks if isinstance(block, ToolUseBlock)]
        questions = [text for block in requested if block.name == ASK for text, _ in questions_of(block.input)]
        return Answer(
            text=self.text or "\n".join(questions),
            thinking="".join(block.thinking for block in self.blocks if isinstance(block, ThinkingBlock)),
            calls=[
                Call(id=one.id, name=one.name, arguments=one.input, effect=effect_of(one.name))
                for one in requested
                if one.name != ASK
            ],
            model=self.model,
            provider="anthropic",
            usage=usage_of(self.usage),
            finish_reason=_REASONS.get(self.stop_reason or ""),
            tier=str(self.usage.get("service_tier") or "")[:63],
            raw={**raw, "asks": [{"id": one.id, "input": one.input} for one in requested if one.name == ASK]},
        )


def blocks_of(content: Any) -> list[dict[str, Any]]:
    """Return the content of a message as blocks."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def usage_of(usage: Mapping[str, Any]) -> Usage:
    """Return the tokens of an answer. The API does not include cached tokens in the input."""
    read, written = (_count(usage, f"cache_{name}_input_tokens") for name in ("read", "creation"))
    return Usage(
        input_tokens=_count(usage, "input_tokens") + read + written,
        output_tokens=_count(usage, "output_tokens"),
        cache_read_tokens=read,
        cache_write_tokens=written,
        cache_write_1h_tokens=min(written, _count(usage.get("cache_creation") or {}, "ephemeral_1h_input_tokens")),
    )


def _count(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) and value > 0 else 0


def questions_of(asked: Mapping[str, Any]) -> Sequence[tuple[str, list[str]]]:
    """Return the questions in the input of `AskUserQuestion`, each with its choices."""
    questions = asked.get("questions")
    return [
        (str(one.get("question", "")), [str(option.get("label", "")) for option in one.get("options") or ()])
        for one in (questions if isinstance(questions, list) else [])
        if isinstance(one, dict)
    ]
