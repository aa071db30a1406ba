"""The base class of providers in other packages: they yield an answer in pieces, as it arrives."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from typing import Any, ClassVar

from pydantic_ai.messages import ModelResponseStreamEvent, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models import ModelRequestParameters, StreamedResponse
from pydantic_ai.usage import RequestUsage

from agentops.base import database_clock
from runs.providers.base import FollowUp, ModelCall, ProviderUnusable

#: The next text of the answer, a thought, a tool call, or the tokens that the answer has used so far.
Piece = str | TextPart | ThinkingPart | ToolCallPart | RequestUsage


class StreamingProvider:
    """The base class of an added provider. One instance serves all runs of a process."""

    #: The value of `provider` in agents, if a setting names the module. An entry point has its own name.
    name: ClassVar[str] = ""

    def check(self, model: str, settings: Mapping[str, Any]) -> None:
        """Raise `ProviderUnusable` if a run with this model cannot start. Make no network request."""

    def answer(self, call: ModelCall) -> AsyncGenerator[Piece, None]:
        """Yield the pieces of the answer. An async generator: code that blocks it blocks all runs of the worker.

        The answer is complete when the generator ends. An exception is a failed attempt: the pieces yielded so far are
        marked as abandoned, and the call is retried if the type of the error allows it.
        """
        raise NotImplementedError

    def context_window(self, model: str) -> int | None:
        """Return the context window of the model in tokens, or None if unknown."""
        return None

    def follow_up(self, model: str, node: str, number: int) -> FollowUp:
        """Return nothing: only recordings contain the next user turn."""
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
    """The pieces of one answer. Neighbouring texts are one part, as are neighbouring thoughts."""

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
            kind = (
                "text" if isinstance(piece, str | TextPart) else "thinking" if isinstance(piece, ThinkingPart) else ""
            )
            part += not kind or kind != previous
            previous = kind
            for event in self._events(part, piece):
                yield event

    def _events(self, part: int, piece: Piece) -> list[ModelResponseStreamEvent]:
        match piece:
            case str(text) | TextPart(content=text):
                return list(self._parts_manager.handle_text_delta(vendor_part_id=part, content=text))
            case ThinkingPart(content=text, signature=signature):
                return list(
                    self._parts_manager.handle_thinking_delta(vendor_part_id=part, content=text, signature=signature)
                )
            case ToolCallPart():
                return [self._parts_manager.handle_part(vendor_part_id=part, part=piece)]
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
