"""Context trimming: leave out the oldest turns of a request, so that it fits the model's context window.

Whole turns are left out: an answer together with the results of its calls. The instructions, the first user message and
the current user message are always sent.

The provider reports the size of a request with its answer. The size of later messages is estimated: one token for three
bytes of text, and a fixed number for a picture or a file. If the provider reports no size, everything is estimated.
Which turns are left out is not stored, because every worker computes the same from the conversation.
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

#: When a request exceeds the first share of the window, turns are left out until it is below the second share. So the
#: start of most requests stays the same, and the provider can cache it.
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
    requests: list[ModelRequestPart] = field(default_factory=list)


class Context:
    """Chooses which messages of a growing conversation to send. Reads each message once."""

    def __init__(self, window: int | None) -> None:
        self._window = window
        self._turns: list[_AnsweredTurn] = []
        #: The number of turns left out now, and at the last answer.
        self._omitted, self._omitted_before = 0, 0
        #: Messages of omitted turns that are sent anyway.
        self._sent_anyway: list[ModelRequestPart] = []
        #: Tokens of the next request.
        self._tokens = 0
        #: The index of the first message that may still get parts, and how many of its parts are counted.
        self._next, self._parts = 0, 0

    def fit(self, history: list[ModelMessage]) -> list[ModelMessage]:
        """Return the messages of the request: all of them if they fit, or if the window is not known."""
        if self._window is None:
            return history
        self._count_new(history)
        self._omit_turns()
        if not self._omitted:
            return history
        begin, rest = history[: self._turns[0].start], history[self._turns[self._omitted].start :]
        # The rest begins with an answer, so no two requests are adjacent.
        return [*messages.merge([*begin, *map(messages.request, self._sent_anyway)]), *rest]

    @property
    def newly_omitted(self) -> int:
        """The number of turns that the last request left out and the request before it did not."""
        return self._omitted - self._omitted_before

    @property
    def tokens(self) -> int:
        """Tokens of the last request, partly estimated."""
        return self._tokens

    def _count_new(self, history: Sequence[ModelMessage]) -> None:
        """Count the messages and parts that were added to the history."""
        for index in range(self._next, len(history)):
            message = history[index]
            if isinstance(message, ModelResponse):
                self._count_answer(index, message)
                self._next, self._parts = index + 1, 0
            else:
                for part in message.parts[self._parts :]:
                    self._count_request(part)
                self._next, self._parts = index, len(message.parts)

    def _count_answer(self, index: int, answer: ModelResponse) -> None:
        """Count an answer. Its usage, if reported, gives the size of the whole request."""
        self._omit_turns()
        self._omitted_before = self._omitted
        estimate = sum(map(_tokens_of, answer.parts))
        answer_tokens = answer.usage.output_tokens or estimate
        self._tokens = (answer.usage.input_tokens or self._tokens) + answer_tokens
        # The lower of both, because some parts of an answer, such as thinking, are not sent again.
        self._turns.append(_AnsweredTurn(index, min(answer_tokens, estimate)))

    def _count_request(self, part: ModelRequestPart) -> None:
        """Count a part of a request. Results belong to the last turn; other parts are kept for `_omit_turns`."""
        tokens = _tokens_of(part)
        self._tokens += tokens
        if not self._turns:
            return
        if isinstance(part, ToolReturnPart):
            self._turns[-1].tokens += tokens
        else:
            self._turns[-1].requests.append(part)

    def _omit_turns(self) -> None:
        """Leave out the oldest turns while the request is too large. The last turn is always kept."""
        if self._window is None or self._tokens < self._window * FULL:
            return
        while self._tokens > self._window * ROOMY and self._omitted < len(self._turns) - 1:
            turn = self._turns[self._omitted]
            self._omitted += 1
            before = sum(map(_tokens_of, [*self._sent_anyway, *turn.requests]))
            self._sent_anyway = _parts_to_keep(self._sent_anyway, turn.requests)
            omitted_tokens = turn.tokens + before - sum(map(_tokens_of, self._sent_anyway))
            self._tokens = max(self._tokens - omitted_tokens, 0)


def window_of(settings: Mapping[str, Any]) -> int | None:
    """Return the context window in an agent's settings, in tokens; None without one. Raises `InvalidWindow`."""
    window = settings.get("context_window")
    if window is None:
        return None
    if isinstance(window, bool) or not isinstance(window, int) or not 0 < window <= MAX_WINDOW:
        raise InvalidWindow(f"settings.context_window must be a whole number of tokens from 1 to {MAX_WINDOW}")
    return window


def _parts_to_keep(parts: list[ModelRequestPart], requests: list[ModelRequestPart]) -> list[ModelRequestPart]:
    """Return the parts of omitted turns to send anyway: `parts` so far, and `requests` of the next omitted turn.

    A user message replaces the earlier ones; instructions are all kept.
    """
    if any(isinstance(part, UserPromptPart) for part in requests):
        parts = [part for part in parts if isinstance(part, SystemPromptPart)]
    return [*parts, *requests]


def _tokens_of(part: ModelRequestPart | ModelResponsePart) -> int:
    """Return the estimated tokens of a part."""
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
