"""Context trimming: which of the oldest turns leave a request so that it fits the model's window.

What is kept is cut at turns: an answer goes with the results of its calls and never without them. The
instructions, the first user turn and the user turn that is being worked on never go.

How large a request is, the provider said with its last answer; what came after that is estimated: a token for every
three bytes of text, a fixed number for a picture or a file. Where it never says, everything is estimated. Nothing of
this is stored, because it follows from the conversation: a worker that takes a run over goes through it once and
decides at each answer what was decided then. (A fork with another window may decide otherwise, from its beginning.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from runs.providers import messages

#: At this share of the window turns leave, and so many that the rest has room for more: a request whose beginning
#: changes each time is one that no provider has in its cache.
FULL = 0.8
ROOMY = 0.6
BYTES_PER_TOKEN = 3
MEDIA_TOKENS = 1_600
#: The frame of a part: its role, name and ids.
FRAME_TOKENS = 8
MAX_WINDOW = 1_000_000_000


class InvalidWindow(ValueError):
    """Settings give the model a window that no model has."""


@dataclass
class _AnsweredTurn:
    """An answer with the results of its calls, and what was said after them."""

    #: Where the answer stands in the history.
    start: int
    #: Of the answer and the results.
    tokens: int
    said: list[ModelRequestPart] = field(default_factory=list)


class Context:
    """What of a growing conversation is sent. Looks at each message once."""

    def __init__(self, window: int | None) -> None:
        self._window = window
        self._turns: list[_AnsweredTurn] = []
        #: How many turns are left out, and how many of them were when the last answer came.
        self._left, self._left_before = 0, 0
        #: Of those turns: what has to be said all the same.
        self._kept: list[ModelRequestPart] = []
        #: Of the request as it would be sent now.
        self._tokens = 0
        #: The first message that may still grow, and how many of its parts were looked at.
        self._next, self._parts = 0, 0

    def fit(self, history: list[ModelMessage]) -> list[ModelMessage]:
        """The request's messages: all of them where the window is large enough, or nobody knows it."""
        if self._window is None:
            return history
        self._look_at(history)
        self._leave()
        if not self._left:
            return history
        begin, rest = history[: self._turns[0].start], history[self._turns[self._left].start :]
        # The rest begins with an answer, so no two requests meet there.
        return [*messages.merge([*begin, *map(messages.request, self._kept)]), *rest]

    @property
    def left_now(self) -> int:
        """How many more turns than last time are left out of the request that was made last."""
        return self._left - self._left_before

    @property
    def tokens(self) -> int:
        """What the request that was made last is taken to have."""
        return self._tokens

    def _look_at(self, history: Sequence[ModelMessage]) -> None:
        for index in range(self._next, len(history)):
            message = history[index]
            if isinstance(message, ModelResponse):
                self._answered(index, message)
                self._next, self._parts = index + 1, 0
            else:
                for part in message.parts[self._parts :]:
                    self._asked(part)
                self._next, self._parts = index, len(message.parts)

    def _answered(self, index: int, answer: ModelResponse) -> None:
        """An answer: what was left out when it was asked for stays so, and its usage says how large all of it is."""
        self._leave()
        self._left_before = self._left
        guess = sum(map(_tokens_of, answer.parts))
        said = answer.usage.output_tokens or guess
        self._tokens = (answer.usage.input_tokens or self._tokens) + said
        # Not all that was said is sent again, thinking for one: what leaves is rather counted too small.
        self._turns.append(_AnsweredTurn(index, min(said, guess)))

    def _asked(self, part: ModelRequestPart) -> None:
        tokens = _tokens_of(part)
        self._tokens += tokens
        if not self._turns:
            return
        if isinstance(part, ToolReturnPart):
            self._turns[-1].tokens += tokens
        else:
            self._turns[-1].said.append(part)

    def _leave(self) -> None:
        """Where the request is full, leave out turns from the oldest on; the last one always stays."""
        if self._window is None or self._tokens < self._window * FULL:
            return
        while self._tokens > self._window * ROOMY and self._left < len(self._turns) - 1:
            turn = self._turns[self._left]
            self._left += 1
            before = sum(map(_tokens_of, [*self._kept, *turn.said]))
            self._kept = _worth_keeping(self._kept, turn.said)
            gone = turn.tokens + before - sum(map(_tokens_of, self._kept))
            self._tokens = max(self._tokens - gone, 0)


def window_of(settings: Mapping[str, Any]) -> int | None:
    """The window that an agent's settings give to its model, in tokens."""
    window = settings.get("context_window")
    if window is None:
        return None
    if isinstance(window, bool) or not isinstance(window, int) or not 0 < window <= MAX_WINDOW:
        raise InvalidWindow(f"settings.context_window must be a whole number of tokens from 1 to {MAX_WINDOW}")
    return window


def _worth_keeping(kept: list[ModelRequestPart], said: list[ModelRequestPart]) -> list[ModelRequestPart]:
    """Of what was said in turns that left: instructions, and the last user turn, on which the work goes on."""
    if any(isinstance(part, UserPromptPart) for part in said):
        kept = [part for part in kept if isinstance(part, SystemPromptPart)]
    return [*kept, *said]


def _tokens_of(part: ModelRequestPart | ModelResponsePart) -> int:
    texts: list[Any]
    match part:
        case TextPart() | UserPromptPart() | SystemPromptPart():
            texts = [part.content]
        case ThinkingPart():
            texts = [part.content, part.signature or ""]
        case ToolCallPart():
            texts = [part.tool_name, part.args_as_json_str()]
        case ToolReturnPart():
            texts = [part.tool_name, part.content]
        case _:
            return FRAME_TOKENS + MEDIA_TOKENS
    return FRAME_TOKENS + sum(map(_tokens_in, texts))


def _tokens_in(content: Any) -> int:
    if isinstance(content, str):
        return -(-len(content.encode(errors="replace")) // BYTES_PER_TOKEN)
    if isinstance(content, Sequence):
        return sum(map(_tokens_in, content))
    return MEDIA_TOKENS
