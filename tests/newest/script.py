"""The script of the model server: the answers to a conversation, and the tokens that it reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

#: The tools of every program: name → its result.
TOOLS = {"get_weather": "sunny", "get_time": "12:00"}
#: The beginning of the names of tools that hand over to another agent, such as `transfer_to_meteorologist`.
HANDOFF = "transfer_to_"
ANSWER = ("It is sunny, ", "and it is 12:00.")


@dataclass(frozen=True)
class Call:
    """A tool call that a model requests."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Tokens:
    """The tokens of a model call, each in one bucket."""

    uncached: int
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    #: Output without reasoning.
    output: int = 0
    reasoning: int = 0

    @property
    def cache_write(self) -> int:
        return self.cache_write_5m + self.cache_write_1h

    @property
    def all_input(self) -> int:
        return self.uncached + self.cache_read + self.cache_write

    @property
    def all_output(self) -> int:
        return self.output + self.reasoning


@dataclass(frozen=True)
class Conversation:
    """A request, read from any protocol."""

    model: str
    #: The names of the tools that the model may call.
    tools: Sequence[str]
    #: The names of the tools whose results the request has, in order.
    results: Sequence[str]
    #: The role and the text of each message: system, user, assistant, tool.
    messages: Sequence[tuple[str, str]]
    is_streamed: bool = False


@dataclass(frozen=True)
class Turn:
    """An answer of a model."""

    #: The parts of the text. Protocols with output items send each part as an item.
    texts: Sequence[str]
    tokens: Tokens
    calls: Sequence[Call] = field(default_factory=tuple)

    @property
    def text(self) -> str:
        return "".join(self.texts)


def next_turn(conversation: Conversation, number: int, *, has_cache_writes: bool, reasons: bool) -> Turn:
    """Return the answer to a conversation: a handoff, then the calls of both tools at once, then a text.

    `number`: of the model call in its program, which makes call IDs unique. `has_cache_writes`, `reasons`: whether the
    provider reports tokens written to its cache, and tokens of reasoning.
    """
    reasoning = 16 if reasons else 0
    written = (500, 300) if has_cache_writes else (0, 0)
    first = Tokens(300, 0, *written, output=40, reasoning=reasoning)
    handoffs = [name for name in conversation.tools if name.startswith(HANDOFF)]
    if handoffs and handoffs[0] not in conversation.results:
        return Turn((), first, [Call(f"call_{number}_handoff", handoffs[0], {})])
    wanted = [name for name in TOOLS if name in conversation.tools]
    if wanted and not set(wanted) & set(conversation.results):
        arguments = {"get_weather": {"city": "Zürich"}, "get_time": {"zone": "Europe/Zurich"}}
        calls = [Call(f"call_{number}_{name}", name, arguments[name]) for name in wanted]
        return Turn(("Let me look.",), first, calls)
    return Turn(ANSWER, Tokens(120, 800, output=24, reasoning=reasoning))
