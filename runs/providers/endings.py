"""Whether a streamed answer has ended: one that stops before its terminal event was cut off, and is no answer.

The protocols end an answer with `message_stop` (Anthropic), a finish reason (Chat Completions
and what resembles it) or a terminal status (Responses); that a connection was closed cleanly proves nothing.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from pydantic_ai.exceptions import ModelAPIError, UnexpectedModelBehavior
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import StreamedResponse

from runs.providers.base import IncompleteAnswer

NO_END = "the provider's stream ended before the answer was complete"


@asynccontextmanager
async def ended(
    request: AbstractAsyncContextManager[StreamedResponse], *, needs_finish_reason: bool = True
) -> AsyncIterator[StreamedResponse]:
    """Open the request; raise `IncompleteAnswer` where its stream was read to the end and had no terminal event.

    Turn `needs_finish_reason` off for servers that speak Chat Completions and never send a finish reason.
    """
    opened = False
    try:
        async with request as stream:
            opened = True
            watched = _watch_for_stop(stream)
            yield stream
    except UnexpectedModelBehavior as error:
        if opened:
            raise
        raise IncompleteAnswer(f"{NO_END}: it held no event") from error
    except ModelAPIError as error:
        if opened and isinstance(error.__cause__, ValueError):
            raise IncompleteAnswer(f"{NO_END}: its last event cannot be read") from error
        raise
    if not _complete(stream, watched, needs_finish_reason):
        raise IncompleteAnswer(NO_END)


class _Watched:
    """The events of an Anthropic stream; remembers whether `message_stop` was among them."""

    def __init__(self, events: Any) -> None:
        self._events = events
        #: Where the library closes the stream.
        self.source = events.source
        self.stopped = False

    def __aiter__(self) -> _Watched:
        return self

    async def __anext__(self) -> Any:
        event = await anext(self._events)
        self.stopped = self.stopped or event.type == "message_stop"
        return event


def _watch_for_stop(stream: StreamedResponse) -> _Watched | None:
    """Put a watch on an Anthropic stream, whose last event the library drops; None for the others."""
    # Whoever made such a stream has imported it; for the others it is not worth the time.
    anthropic: Any = sys.modules.get("pydantic_ai.models.anthropic")
    if anthropic is None or not isinstance(stream, anthropic.AnthropicStreamedResponse):
        return None
    watched = _Watched(vars(stream)["_response"])
    vars(stream)["_response"] = watched
    return watched


def _complete(stream: StreamedResponse, watched: _Watched | None, needs_finish_reason: bool) -> bool:
    answer = stream.get()
    if answer.state in ("incomplete", "interrupted") or answer.finish_reason == "error":
        return False
    if watched is not None:
        return watched.stopped
    # What has no address came over no network, where it could have been cut.
    is_remote = stream.provider_url is not None
    return not (is_remote and needs_finish_reason) or _has_finish_reason(stream, answer)


def _has_finish_reason(stream: StreamedResponse, answer: ModelResponse) -> bool:
    """Whether the provider named a reason: for Chat Completions the library puts "stop" where none came."""
    chat: bool | None = getattr(stream, "_has_finish_reason", None)
    if chat is not None:
        return chat
    return bool(answer.finish_reason or (answer.provider_details or {}).get("finish_reason"))
