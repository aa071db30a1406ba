"""Read the stream of a model, and collect its text for the log. Nothing is written here: the caller commits the text.

All model calls of a process run on one event loop, in a separate thread. Provider clients keep connections that belong
to their loop, so a new loop for each call would break them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from copy import copy
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import (
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.models import StreamedResponse

from agentops.base.redaction.partial_texts import Stream
from runs.providers.base import AnswerTooLong, IncompleteAnswer
from timeline.events.llm import LlmText, LlmTextDelta, LlmThinking, LlmThinkingDelta
from timeline.log import Entry

log = logging.getLogger(__name__)
T = TypeVar("T")


class LoopThread:
    """The thread with the event loop of a process. A loop that was stopped by an interrupt is started again."""

    def __init__(self, name: str = "model-calls") -> None:
        self._loop = asyncio.new_event_loop()
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_ending.is_set():
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt):  # raised by a task: without the loop, model calls would never end
                log.exception("a model call has interrupted the event loop")

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start `work` on the loop. Cancelling the future cancels the work."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def ask_to_stop(self) -> None:
        """Tell the loop to stop, without waiting for it. Does nothing if it is closed."""
        self._is_ending.set()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)

    def close(self, until: float) -> None:
        """Stop the loop, and wait for the end of the thread until a time of `time.monotonic()`."""
        self.ask_to_stop()
        self._thread.join(max(until - time.monotonic(), 0))
        if not self._thread.is_alive():
            self._loop.close()


#: Seconds without data from the model after which the call has failed.
IDLE_S = 60.0
#: Limit of an answer, as the sum of its characters and its events. Only a stream that never ends reaches it.
MAX_SIZE = 16 * 1024 * 1024
#: Seconds after which the first text is logged. An answer that is complete before that is not split.
FIRST_PAUSE_S = 0.025
#: Seconds, or bytes of text, after which further text is logged.
FLUSH_S = 0.25
FLUSH_BYTES = 4096


@dataclass(frozen=True, slots=True)
class TextChunk:
    """The next text of a block: a text or a thought of the answer (`kind`). `ends`: the block is complete."""

    kind: str
    index: int
    text: str
    ends: bool = False


@dataclass
class ModelCallState:
    """The progress of a model call, needed if the call is abandoned."""

    stream: StreamedResponse | None = None
    #: Whether the provider refused the call, and so does not bill it.
    refused: bool = False
    #: Monotonic seconds.
    began: float = field(default_factory=time.monotonic)

    def usage(self) -> ModelResponse | None:
        """Return the usage that the provider has reported so far, without parts; None if it has reported none."""
        stream = self.stream
        if stream is None or not (stream.usage.input_tokens or stream.usage.output_tokens):
            return None
        return ModelResponse(
            parts=[],
            usage=copy(stream.usage),
            model_name=stream.model_name,
            timestamp=stream.timestamp,
            provider_name=stream.provider_name,
            provider_url=stream.provider_url,
        )


async def read(
    request: AbstractAsyncContextManager[StreamedResponse],
    put: Callable[[TextChunk], None],
    idle_s: float = IDLE_S,
    state: ModelCallState | None = None,
) -> ModelResponse:
    """Return the whole answer. Pass each text to `put` when it arrives, and keep the progress in `state`.

    Raises `TimeoutError` after `idle_s` seconds without data, `AnswerTooLong`, and the errors of the provider.
    """
    loop, state, events, size = asyncio.get_running_loop(), state or ModelCallState(), 0, 0
    try:
        async with asyncio.timeout(idle_s) as limit, request as stream:
            state.stream = stream
            async for event in stream:
                events += 1
                limit.reschedule(loop.time() + idle_s)
                size += 1 + _length(event)
                if size > MAX_SIZE:
                    raise AnswerTooLong(f"the answer has more than {MAX_SIZE:,} characters")
                chunk = _chunk(event)
                if chunk is not None and (chunk.text or chunk.ends):
                    put(chunk)
            return stream.get()
    except (SystemExit, KeyboardInterrupt) as error:
        # Either would end the event loop of all model calls.
        raise RuntimeError(f"the provider raised {type(error).__name__}: {error}") from error
    except Exception as error:
        unanswered = state.stream is None and not isinstance(error, TimeoutError | IncompleteAnswer)
        state.refused = unanswered or (isinstance(error, ModelHTTPError) and not events)
        raise


def _length(event: ModelResponseStreamEvent) -> int:
    """Return the number of characters that an event adds to the answer."""
    match event:
        case PartStartEvent(part=TextPart(content=str(text)) | ThinkingPart(content=str(text))):
            return len(text)
        case PartDeltaEvent(
            delta=TextPartDelta(content_delta=str(text))
            | ThinkingPartDelta(content_delta=str(text))
            | ToolCallPartDelta(args_delta=str(text))
        ):
            return len(text)
        case PartStartEvent(part=ToolCallPart(args=str(text))):
            return len(text)
    return 0


def _chunk(event: ModelResponseStreamEvent) -> TextChunk | None:
    """Return the text that an event adds to a block; None for events of other parts."""
    match event:
        case PartStartEvent(part=TextPart(content=text)):
            return TextChunk("text", event.index, text)
        case PartStartEvent(part=ThinkingPart(content=text)):
            return TextChunk("thinking", event.index, text)
        case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
            return TextChunk("text", event.index, text)
        case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=text)):
            return TextChunk("thinking", event.index, text or "")
        case PartEndEvent(part=TextPart()):
            return TextChunk("text", event.index, "", ends=True)
        case PartEndEvent(part=ThinkingPart()):
            return TextChunk("thinking", event.index, "", ends=True)
    return None


@dataclass
class _Block:
    """A text or a thought of the answer, passing through the redactor."""

    stream: Stream = field(default_factory=Stream)
    #: Redacted text that is not in the log yet.
    ready: list[str] = field(default_factory=list)
    is_streamed: bool = False


@dataclass
class Deltas:
    """Collects chunks into deltas: the first is due after 25 ms, each further one after 250 ms or 4 KiB.

    Text passes a redactor, which holds back a possible secret until the block ends. The joined deltas of a block are
    its text.
    """

    step: int
    #: How often deltas were taken.
    flushed: int = 0
    #: By kind and index of the block.
    _blocks: dict[tuple[str, int], _Block] = field(default_factory=dict)
    #: Characters of the collected text, and when it was begun (monotonic seconds).
    _size: int = 0
    _since: float = 0.0

    def add(self, chunk: TextChunk) -> None:
        """Collect the text of a chunk, redacted."""
        block = self._blocks.setdefault((chunk.kind, chunk.index), _Block())
        clean = block.stream.feed(chunk.text) if chunk.text else ""
        if chunk.ends:
            clean += block.stream.flush()
        if clean:
            if not self.is_ready and not self.flushed:
                self._since = time.monotonic()
            block.ready.append(clean)
            self._size += len(clean)

    def wait_s(self) -> float:
        """Return how many seconds to wait for the next chunk before the collected text is due."""
        if not self.is_ready:
            return FLUSH_S
        pause = FLUSH_S if self.flushed else FIRST_PAUSE_S
        return max(self._since + pause - time.monotonic(), 0.0)

    @property
    def is_ready(self) -> bool:
        """Whether there is collected text."""
        return self._size > 0

    def due(self) -> bool:
        """Whether the collected text is to be logged now."""
        full = self.flushed > 0 and self._size >= FLUSH_BYTES
        return self.is_ready and (full or self.wait_s() == 0.0)

    def take(self) -> list[Entry]:
        """Return the collected text as deltas, and forget it. Text that the redactor holds back is not included."""
        entries = [self._delta(part, block) for part, block in self._blocks.items() if block.ready]
        self._size, self._since = 0, time.monotonic()
        self.flushed += 1
        return entries

    def rest(self) -> list[Entry]:
        """Return the remaining text of the answer: a last delta of each block with deltas, other blocks as a whole."""
        for block in self._blocks.values():
            block.ready.append(block.stream.flush())
        in_order = sorted(self._blocks.items(), key=lambda item: item[0][1])
        unsent = [(part, block) for part, block in in_order if any(block.ready)]
        return [(self._delta if block.is_streamed else self._whole)(part, block) for part, block in unsent]

    def _delta(self, part: tuple[str, int], block: _Block) -> Entry:
        text, block.ready, block.is_streamed = "".join(block.ready), [], True
        kind, index = part
        delta = LlmTextDelta if kind == "text" else LlmThinkingDelta
        # Redacted as one text: redacting the pieces again could change it.
        return Entry(delta(text=text, index=index), step=self.step, clean=True)

    def _whole(self, part: tuple[str, int], block: _Block) -> Entry:
        kind, index = part
        whole = LlmText if kind == "text" else LlmThinking
        return Entry(whole(text="".join(block.ready), index=index), step=self.step, clean=True)
