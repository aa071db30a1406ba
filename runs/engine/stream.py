"""Reading a model's stream: on the loop it is read, here its text is put together for the log.

May import parts and timeline.redact. Nothing is written here: the caller commits what `due` says is due.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from pydantic_ai.messages import (
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
)
from pydantic_ai.models import StreamedResponse

from timeline.events.llm import LlmTextDelta, LlmThinkingDelta
from timeline.log import Entry
from timeline.redact import Stream

#: Seconds without a sign from the model after which the call has failed.
IDLE_S = 60.0
#: The first text is shown at once; the pause tells an answer that streams from one that came whole.
FIRST_PAUSE_S = 0.025
FLUSH_S = 0.25
FLUSH_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next text of a part of the answer."""

    kind: str
    index: int
    text: str


async def read(
    request: AbstractAsyncContextManager[StreamedResponse], put: Callable[[Chunk], None], idle_s: float = IDLE_S
) -> ModelResponse:
    """The whole answer; its text goes to `put` as it comes."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(idle_s) as limit, request as stream:
        async for event in stream:
            limit.reschedule(loop.time() + idle_s)
            chunk = _chunk(event)
            if chunk is not None and chunk.text:
                put(chunk)
        return stream.get()


def _chunk(event: ModelResponseStreamEvent) -> Chunk | None:
    match event:
        case PartStartEvent(part=TextPart(content=text)):
            return Chunk("text", event.index, text)
        case PartStartEvent(part=ThinkingPart(content=text)):
            return Chunk("thinking", event.index, text)
        case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
            return Chunk("text", event.index, text)
        case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=text)):
            return Chunk("thinking", event.index, text or "")
    return None


@dataclass
class Deltas:
    """Puts chunks together: the first goes out at once, then at most every 250 ms or 4 KiB.

    Text leaves through a redactor that holds back its end until no secret can be cut in two.
    """

    step: int
    flushed: int = 0
    _streams: dict[tuple[str, int], Stream] = field(default_factory=dict)
    _ready: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    _size: int = 0
    _since: float = 0.0

    def add(self, chunk: Chunk) -> None:
        part = (chunk.kind, chunk.index)
        if part not in self._streams:
            self._streams[part] = Stream()
        clean = self._streams[part].feed(chunk.text)
        if clean:
            if not self._ready and not self.flushed:
                self._since = time.monotonic()
            self._ready.setdefault(part, []).append(clean)
            self._size += len(clean)

    def wait_s(self) -> float:
        """How long to wait for the next chunk before what is ready should go out."""
        if not self._ready:
            return FLUSH_S
        pause = FLUSH_S if self.flushed else FIRST_PAUSE_S
        return max(self._since + pause - time.monotonic(), 0.0)

    def due(self) -> bool:
        full = self.flushed > 0 and self._size >= FLUSH_BYTES
        return bool(self._ready) and (full or self.wait_s() == 0.0)

    def take(self) -> list[Entry]:
        """What is ready, as events; an answer that ends before anything was taken never becomes deltas."""
        entries = [self._entry(part, "".join(texts)) for part, texts in self._ready.items()]
        self._ready, self._size, self._since = {}, 0, time.monotonic()
        self.flushed += 1
        return entries

    def _entry(self, part: tuple[str, int], text: str) -> Entry:
        kind, index = part
        delta = LlmTextDelta if kind == "text" else LlmThinkingDelta
        return Entry(delta(text=text, index=index), step=self.step)
