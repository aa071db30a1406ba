"""Detection of truncated streams: a streamed response is complete only if it ended with a terminal event.

The terminal event is `message_stop` (Anthropic), a finish reason (Chat Completions and compatible APIs) or a
terminal status (Responses). A cleanly closed connection does not prove that the response is complete.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, UnexpectedModelBehavior
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import StreamedResponse

from runs.providers.base import IncompleteAnswer

NO_END = "the provider's stream ended before the answer was complete"


@asynccontextmanager
async def complete_only(
    request: AbstractAsyncContextManager[StreamedResponse], *, needs_finish_reason: bool = True
) -> AsyncIterator[StreamedResponse]:
    """Open the request. Raise `IncompleteAnswer` if the stream ends without a terminal event.

    Set `needs_finish_reason` to False for Chat Completions servers that never send a finish reason.
    """
    opened = False
    try:
        async with request as stream:
            opened = True
            stop_watch = _watch_for_stop(stream)
            yield stream
    except UnexpectedModelBehavior as error:
        if opened:
            raise
        raise IncompleteAnswer(f"{NO_END}: it contained no events") from error
    except ModelAPIError as error:
        # An event that is not JSON, or not UTF-8. The first one is read while the stream is opened.
        if isinstance(error.__cause__, ValueError) and not isinstance(error, ModelHTTPError):
            raise IncompleteAnswer(f"{NO_END}: its last event cannot be parsed") from error
        raise
    if not _complete(stream, stop_watch, needs_finish_reason):
        raise IncompleteAnswer(NO_END)


class _StopWatch:
    """The events of an Anthropic stream. Records whether `message_stop` was received."""

    def __init__(self, events: Any) -> None:
        self._events = events
        #: Used by pydantic-ai to close the stream.
        self.source = events.source
        self.has_stopped = False

    def __aiter__(self) -> _StopWatch:
        return self

    async def __anext__(self) -> Any:
        event = await anext(self._events)
        self.has_stopped = self.has_stopped or event.type == "message_stop"
        return event


def _watch_for_stop(stream: StreamedResponse) -> _StopWatch | None:
    """Wrap the events of an Anthropic stream, whose last event pydantic-ai drops. Return None for other streams."""
    # An Anthropic stream exists only if its module is imported already; importing it is slow.
    anthropic: Any = sys.modules.get("pydantic_ai.models.anthropic")
    if anthropic is None or not isinstance(stream, anthropic.AnthropicStreamedResponse):
        return None
    stop_watch = _StopWatch(vars(stream)["_response"])
    vars(stream)["_response"] = stop_watch
    return stop_watch


def _complete(stream: StreamedResponse, stop_watch: _StopWatch | None, needs_finish_reason: bool) -> bool:
    answer = stream.get()
    if answer.state in ("incomplete", "interrupted") or answer.finish_reason == "error":
        return False
    if stop_watch is not None:
        return stop_watch.has_stopped
    # A stream without a URL did not come over the network, so it cannot be truncated.
    is_remote = stream.provider_url is not None
    return not (is_remote and needs_finish_reason) or _has_finish_reason(stream, answer)


def _has_finish_reason(stream: StreamedResponse, answer: ModelResponse) -> bool:
    """Whether the provider sent a finish reason. For Chat Completions, pydantic-ai fills in "stop" if it did not."""
    chat: bool | None = getattr(stream, "_has_finish_reason", None)
    if chat is not None:
        return chat
    return bool(answer.finish_reason or (answer.provider_details or {}).get("finish_reason"))
