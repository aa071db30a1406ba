"""Context trimming: leave out the oldest turns of a request, so that it fits the model's context window.

Whole turns are left out: an answer together with the results of its calls. The instructions, the first user message and
the current one are always sent.

The provider reports the size of a request with its answer. What follows is estimated: one token for three bytes of
text, a fixed number for a picture or a file. If the provider reports nothing, all is estimated. Nothing of this is
stored, because it follows from the conversation: a worker that takes over decides the same at each answer. A fork with
another window may decide differently.
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

#: Turns are left out above this share of the window, until the request is below the second one: if the beginning
#: of every request changed, no provider could cache it.
FULL = 0.8
ROOMY = 0.6
BYTES_PER_TOKEN = 3
MEDIA_TOKENS = 1_600
#: Tokens of the frame of a part: its role, name and IDs.
FRAME_TOKENS = 8
MAX_WINDOW = 1_000_000_000


class InvalidWindow(ValueError):
    """The settings contain a context window that no model has."""


@dataclass
class _AnsweredTurn:
    """An answer, the results of its calls, and the user messages after them."""

    #: Index of the answer in the history.
    start: int
    #: Tokens of the answer and the results.
    tokens: int
    said: list[ModelRequestPart] = field(default_factory=list)


class Context:
    """Chooses what to send of a growing conversation. Looks at each message once."""

    def __init__(self, window: int | None) -> None:
        self._window = window
        self._turns: list[_AnsweredTurn] = []
        #: Turns left out now, and at the last answer.
        self._left, self._left_before = 0, 0
        #: Messages of those turns that are sent anyway.
        self._kept: list[ModelRequestPart] = []
        #: Tokens of the next request.
        self._tokens = 0
        #: The first message that may still grow, and how many of its parts are counted.
        self._next, self._parts = 0, 0

    def fit(self, history: list[ModelMessage]) -> list[ModelMessage]:
        """Return the messages of the request: all of them if they fit, or if the window is not known."""
        if self._window is None:
            return history
        self._look_at(history)
        self._leave()
        if not self._left:
            return history
        begin, rest = history[: self._turns[0].start], history[self._turns[self._left].start :]
        # The rest begins with an answer, so no two requests are adjacent.
        return [*messages.merge([*begin, *map(messages.request, self._kept)]), *rest]

    @property
    def left_now(self) -> int:
        """Turns that the last request left out and the one before did not."""
        return self._left - self._left_before

    @property
    def tokens(self) -> int:
        """Tokens of the last request, partly estimated."""
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
        """Count an answer: its usage gives the size of the whole request."""
        self._leave()
        self._left_before = self._left
        guess = sum(map(_tokens_of, answer.parts))
        said = answer.usage.output_tokens or guess
        self._tokens = (answer.usage.input_tokens or self._tokens) + said
        # Not all of an answer is sent again (thinking, for example), so this errs on the small side.
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
        """Leave out turns from the oldest on while the request is too large. The last turn is always kept."""
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
    """Return the context window in an agent's settings, in tokens; None without one. Raises `InvalidWindow`."""
    window = settings.get("context_window")
    if window is None:
        return None
    if isinstance(window, bool) or not isinstance(window, int) or not 0 < window <= MAX_WINDOW:
        raise InvalidWindow(f"settings.context_window must be a whole number of tokens from 1 to {MAX_WINDOW}")
    return window


def _worth_keeping(kept: list[ModelRequestPart], said: list[ModelRequestPart]) -> list[ModelRequestPart]:
    """Return what to keep of turns that are left out: instructions, and the current user message."""
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
