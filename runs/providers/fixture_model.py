"""The `fixture` provider's model: answers call n with entry n of a fixture, at once or at the recorded pace.
Imports pydantic-ai and `runs.fixtures`; it asks nobody and never looks at the history.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from copy import copy, deepcopy
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NamedTuple

from pydantic_ai import RunContext
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    ModelResponsePart,
    ModelResponseStreamEvent,
    PartStartEvent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.profiles import DEFAULT_PROFILE, ModelProfile
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from runs.fixtures.format import Call, ContentEvent, Fixture, ToolCallEvent

SYSTEM = "fixture"
# A long answer is split into about as many deltas as an API would send in the time, not one per word.
CHUNK_MS = 40


class Chunk(NamedTuple):
    """A piece of the answer: the next text of a part, or with `text` None the whole part."""

    at_ms: float
    part: int
    text: str | None


class FixtureModel(Model[Any]):
    """One recorded model call. `pace` 0 answers at once, 1 as recorded, 2 twice as fast."""

    # The answer is as recorded: nothing in it was broken up for a tokenizer, nothing has to be joined again.
    _answers_requests_itself = False

    def __init__(self, fixture: Fixture, call: int, node: str, pace: float = 0.0) -> None:
        if pace < 0:
            raise ValueError(f"pace {pace!r} is negative")
        super().__init__()
        self.fixture = fixture
        self.call = call
        self.node = node
        self.pace = pace

    @property
    def model_name(self) -> str:
        return self.fixture.call(self.call, self.node).response.model_name or SYSTEM

    @property
    def system(self) -> str:
        return SYSTEM

    @cached_property
    def profile(self) -> ModelProfile:
        # The base class would look the model's context window up in the price table.
        return DEFAULT_PROFILE

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        recorded = self.fixture.call(self.call, self.node)
        if self.pace:
            await asyncio.sleep(recorded.output.duration_ms / 1000 / self.pace)
        return answer_now(recorded)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncIterator[StreamedResponse]:
        recorded = self.fixture.call(self.call, self.node)
        stream = PacedStream if self.pace else InstantStream
        yield stream(model_request_parameters, recorded, self.pace)


class InstantStream(StreamedResponse):
    """The whole answer, one event per part."""

    def __init__(self, parameters: ModelRequestParameters, recorded: Call, pace: float) -> None:
        super().__init__(parameters)
        self._recorded = recorded
        self._answer = answer_now(recorded)
        self._pace = pace

    def __aiter__(self) -> AsyncIterator[ModelResponseStreamEvent]:
        # Straight to the parts: the base class adds part ends and a result event, for agents that use them.
        if self._event_iterator is None:
            self._event_iterator = self._get_event_iterator()
        return self._event_iterator

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        for index, part in enumerate(self._answer.parts):
            yield PartStartEvent(index=index, part=part)

    def get(self) -> ModelResponse:
        return self._answer

    async def close_stream(self) -> None:
        """Nothing is open."""

    @property
    def usage(self) -> RequestUsage:
        return self._answer.usage

    @property
    def model_name(self) -> str:
        return self._answer.model_name or SYSTEM

    @property
    def provider_name(self) -> str | None:
        return self._answer.provider_name

    @property
    def provider_url(self) -> str | None:
        return self._answer.provider_url

    @property
    def timestamp(self) -> datetime:
        return self._answer.timestamp


class PacedStream(InstantStream):
    """The answer as it came: text and thinking in deltas, tool calls whole."""

    def __aiter__(self) -> AsyncIterator[ModelResponseStreamEvent]:
        return StreamedResponse.__aiter__(self)

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        started = time.monotonic()
        for chunk in schedule(self._recorded, CHUNK_MS * self._pace):
            due = started + chunk.at_ms / 1000 / self._pace
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if self.cancelled:
                return
            for event in self._events(chunk, self._answer.parts[chunk.part]):
                yield event

    def _events(self, chunk: Chunk, part: ModelResponsePart) -> Iterator[ModelResponseStreamEvent]:
        if chunk.text is None:
            yield self._parts_manager.handle_part(vendor_part_id=chunk.part, part=copy(part))
        elif isinstance(part, TextPart):
            yield from self._parts_manager.handle_text_delta(vendor_part_id=chunk.part, content=chunk.text)
        else:
            manager = self._parts_manager
            yield from manager.handle_thinking_delta(vendor_part_id=chunk.part, content=chunk.text)

    @property
    def usage(self) -> RequestUsage:
        # As a provider, which tells it at the end.
        return self._answer.usage if self._finished else RequestUsage()

    def get(self) -> ModelResponse:
        # Until all of it was shown, the answer is what was shown: that is what an abandoned turn had.
        return self._answer if self._finished else StreamedResponse.get(self)


def answer_now(recorded: Call) -> ModelResponse:
    """The recorded answer as received now, and safe to change: all runs that play a fixture share it."""
    answer = copy(recorded.response)
    answer.usage = copy(answer.usage)
    answer.parts = parts = [copy(part) for part in answer.parts]
    for part in parts:
        if isinstance(part, ToolCallPart):
            part.args = deepcopy(part.args)
    answer.timestamp = datetime.now(UTC)
    return answer


def schedule(recorded: Call, chunk_ms: float) -> Iterator[Chunk]:
    """When each piece of the answer is shown: as its event was recorded, else spread over the call by length.

    Parts come in the order of the message whatever the events say, so times only ever go up.
    """
    recorded_deltas = {kind: _deltas(recorded, kind) for kind in ("text", "thinking")}
    called = {event.call_id: event.at_ms for event in recorded.events if isinstance(event, ToolCallEvent)}
    total = sum(_weight(part) for part in recorded.response.parts) or 1
    size = max(1, round(total * chunk_ms / max(recorded.output.duration_ms, 1)))
    shown, at = 0, 0.0
    for index, part in enumerate(recorded.response.parts):
        if isinstance(part, TextPart | ThinkingPart) and part.content:
            deltas = recorded_deltas[part.part_kind]
            pieces = _recorded_pieces(deltas, len(part.content)) if deltas else _words(part.content, size)
        else:
            pieces = iter([(called.get(part.tool_call_id) if isinstance(part, ToolCallPart) else None, None)])
        for due, text in pieces:
            shown += len(text) if text is not None else _weight(part)
            spread = recorded.output.duration_ms * shown / total
            at = max(at, float(due) if due is not None else spread)
            yield Chunk(at, index, text)


def _deltas(recorded: Call, kind: str) -> list[tuple[int, str]]:
    return [
        (event.at_ms, event.content)
        for event in recorded.events
        if isinstance(event, ContentEvent) and event.type == kind and event.content
    ]


def _recorded_pieces(deltas: list[tuple[int, str]], length: int) -> Iterator[tuple[int | None, str | None]]:
    """Takes the next `length` characters off the recorded deltas: they run on over the parts of one kind."""
    while length > 0:
        at_ms, text = deltas.pop(0)
        if len(text) > length:
            deltas.insert(0, (at_ms, text[length:]))
        yield at_ms, text[:length]
        length -= len(text)


def _words(text: str, size: int) -> Iterator[tuple[int | None, str | None]]:
    """Whole words, put together until a piece has `size` characters."""
    piece = ""
    for word in re.findall(r"\s*\S+|\s+", text):
        piece += word
        if len(piece) >= size:
            yield None, piece
            piece = ""
    if piece:
        yield None, piece


def _weight(part: ModelResponsePart) -> int:
    if isinstance(part, TextPart | ThinkingPart):
        return len(part.content)
    return len(part.args_as_json_str()) if isinstance(part, ToolCallPart) else 1
