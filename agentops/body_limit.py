"""Bodies of requests under ASGI: no more than a body may have is taken, and no longer waited for than is fair.

Roof: wraps Django's ASGI application, which would first write whatever is sent to disk, however much and slowly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Any, Any, Any], Awaitable[None]]

#: No body of ours is longer. Of one that is, one byte more is handed on, by which the view knows it.
MAX_BYTES = 5 * 1024 * 1024
#: For the whole body.
MAX_SECONDS = 30.0
#: What the scope then says (runs.api.bodies).
LATE = "agentops.late"
END: Message = {"type": "http.request", "body": b"", "more_body": False}


class BodyLimit:
    """Ends a body early where it is too long or too late; the views refuse what they got so far."""

    def __init__(self, application: Application) -> None:
        self.application = application

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            receive = _Body(scope, receive).receive
        await self.application(scope, receive, send)


class _Body:
    """One request's body as it is handed on."""

    def __init__(self, scope: Message, receive: Receive) -> None:
        self._scope = scope
        self._receive = receive
        self._left = MAX_BYTES + 1
        self._until: float | None = None
        self._ended = False
        length = dict(scope["headers"]).get(b"content-length", b"")
        #: Not read at all: the view sees the header and knows.
        self._refused = length.isdigit() and (len(length) > 18 or int(length) > MAX_BYTES)

    async def receive(self) -> Message:
        if self._ended:
            return await self._disconnect()
        if self._refused:
            self._ended = True
            return END
        message = await self._in_time()
        if message["type"] != "http.request":
            return message
        body = message.get("body", b"")[: self._left]
        self._left -= len(body)
        self._ended = not (message.get("more_body", False) and self._left)
        return {"type": "http.request", "body": body, "more_body": not self._ended}

    async def _in_time(self) -> Message:
        if self._until is None:
            self._until = asyncio.get_running_loop().time() + MAX_SECONDS
        try:
            async with asyncio.timeout_at(self._until):
                return await self._receive()
        except TimeoutError:
            self._scope[LATE] = True
            return END

    async def _disconnect(self) -> Message:
        """What is sent after the end that we have made goes nowhere; Django waits for the client's leaving only."""
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                return message
