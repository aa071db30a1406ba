"""The base class of providers in other packages, which yield an answer in pieces as it arrives."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from pydantic_ai.messages import ModelResponseStreamEvent, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models import ModelRequestParameters, StreamedResponse
from pydantic_ai.usage import RequestUsage

from agentops.base import database_clock
from runs.providers import finish_reasons
from runs.providers.base import FollowUp, IncompleteAnswer, ModelCall, ProviderUnusable


@dataclass(frozen=True)
class AnswerEnd:
    """Why the model ended the answer, in the words of any provider, such as `max_tokens` or `refusal`."""

    finish_reason: str
    #: The explanation of a refusal.
    explanation: str = ""


#: A piece of an answer: the next text, a thought, a tool call, the tokens that the answer has used so far, or its end.
Piece = str | TextPart | ThinkingPart | ToolCallPart | RequestUsage | AnswerEnd


class StreamingProvider:
    """The base class of an added provider. One instance serves all runs of a process."""

    #: The name of the provider for agents, unless an entry point adds it, which then gives the name.
    name: ClassVar[str] = ""

    def check(self, model: str, settings: Mapping[str, Any]) -> None:
        """Check whether a run with this model can start, without a network request. Raises `ProviderUnusable`."""

    def answer(self, call: ModelCall) -> AsyncGenerator[Piece, None]:
        """Yield the pieces of the answer, in an async generator. Code that blocks it blocks all runs of the worker.

        The answer is complete when the generator ends. An exception makes the attempt fail: the pieces so far are
        marked as abandoned, and the call is retried if the type of the error allows it.
        """
        raise NotImplementedError

    def context_window(self, model: str) -> int | None:
        """Return the context window of the model in tokens, or None if unknown."""
        return None

    def follow_up(self, model: str, node: str, number: int) -> FollowUp:
        """Return nothing, because only recordings contain the next user turn."""
        return FollowUp()

    @asynccontextmanager
    async def open(self, call: ModelCall) -> AsyncIterator[StreamedResponse]:
        """Open the answer as a stream."""
        pieces = self.answer(call)
        if not isinstance(pieces, AsyncGenerator):
            raise ProviderUnusable(f"{type(self).__name__}.answer must be an async generator: `async def` with `yield`")
        async with aclosing(pieces):
            yield _PieceStream(pieces, call.model)


class _PieceStream(StreamedResponse):
    """The stream of one answer. Adjacent texts become one part, and adjacent thoughts too."""

    def __init__(self, pieces: AsyncIterator[Piece], model: str) -> None:
        super().__init__(ModelRequestParameters())
        self._pieces, self._model = pieces, model
        self._tokens = RequestUsage()
        self._began = database_clock.now()

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        part, previous = 0, ""
        async for piece in self._pieces:
            if isinstance(piece, RequestUsage):
                self._tokens = piece
                continue
            if isinstance(piece, AnswerEnd):
                self._end(piece)
                continue
            is_text, is_thinking = isinstance(piece, str | TextPart), isinstance(piece, ThinkingPart)
            kind = "text" if is_text else "thinking" if is_thinking else ""
            part += not kind or kind != previous
            previous = kind
            for event in self._events(part, piece):
                yield event

    def _end(self, end: AnswerEnd) -> None:
        """Keep the finish reason. Raises `IncompleteAnswer` if it means an error."""
        self.finish_reason = finish_reasons.named(end.finish_reason)
        if self.finish_reason == finish_reasons.ERROR:
            raise IncompleteAnswer(f"the provider ended the answer with {end.finish_reason[:64]!r}")
        refusal = {"refusal": end.explanation} if end.explanation else {}
        self.provider_details = {"finish_reason": end.finish_reason, **refusal}

    def _events(self, part: int, piece: Piece) -> list[ModelResponseStreamEvent]:
        """Return the events that add a piece to the part with the index `part`."""
        manager = self._parts_manager
        match piece:
            case str(text) | TextPart(content=text):
                return list(manager.handle_text_delta(vendor_part_id=part, content=text))
            case ThinkingPart(content=text, signature=signature):
                return list(manager.handle_thinking_delta(vendor_part_id=part, content=text, signature=signature))
            case ToolCallPart():
                return [manager.handle_part(vendor_part_id=part, part=piece)]
        raise ProviderUnusable(f"answer yielded a {type(piece).__name__}; see docs/guides/providers.md for the pieces")

    async def close_stream(self) -> None:
        """Do nothing: the generator closes its resources."""

    @property
    def usage(self) -> RequestUsage:
        return self._tokens

    @property
    def model_name(self) -> str:
        return self._model

    @property
    def provider_name(self) -> None:
        return None

    @property
    def provider_url(self) -> None:
        return None

    @property
    def timestamp(self) -> datetime:
        return self._began
