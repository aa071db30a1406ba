"""Read request bodies completely before a thread is used, within limits of size, time and memory.

agentops.http.threaded reads with this module. Its middleware, which the settings name, answers for refused bodies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from agentops.http.error_pages import answer

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]

#: Bytes of the longest body that a view reads. One byte more of a longer body is kept, so that the view notices.
MAX_BYTES = 5 * 1024 * 1024
#: Bytes of a body that do not count against the memory that all bodies of a process share.
FREE_BYTES = 64 * 1024
SHARED_BYTES = 128 * 1024 * 1024
#: The key in the ASGI scope of a refused body; its value is one of REFUSALS.
REFUSED = "agentops.refused"
LATE, FULL = "request_timeout", "too_many_bodies"
RETRY_AFTER_S = 5
#: Code → status and text.
REFUSALS = {
    LATE: (408, "The body was not received within the time limit."),
    FULL: (503, "The server is reading too many large bodies. Try again in 5 seconds."),
}


class ClientDisconnected(Exception):
    """The client closed the connection before its request was complete."""


@dataclass
class Bodies:
    """The bodies that one process is reading. Used on its event loop only."""

    shared_bytes: int = SHARED_BYTES
    _reserved: int = field(default=0, init=False)

    async def read(self, scope: Message, receive: Receive) -> RequestBody:
        """Return the whole body. Raises ClientGone.

        A body that takes longer than AGENTOPS_BODY_TIMEOUT_S, or for which there is no memory, is dropped and
        marked in `scope`. One whose Content-Length is too long is not read: the view sees the header.
        """
        body = RequestBody(self)
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"")
        is_empty = not length and b"transfer-encoding" not in headers
        if is_empty or (length.isdigit() and (len(length) > 18 or int(length) > MAX_BYTES)):
            return body
        try:
            async with asyncio.timeout(settings.AGENTOPS_BODY_TIMEOUT_S):
                while body.take(await receive()):
                    pass
        except TimeoutError:
            body.refuse(scope, LATE)
        except MemoryError:
            body.refuse(scope, FULL)
        except BaseException:
            body.release()
            raise
        return body

    def reserve(self, count: int) -> None:
        """Reserve memory. Raises `MemoryError` if all bodies together would exceed the limit."""
        if self._reserved + count > self.shared_bytes:
            raise MemoryError
        self._reserved += count

    def release_bytes(self, count: int) -> None:
        self._reserved -= count


class RequestBody:
    """The body of one request; `release` returns its memory."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._reserved = 0
        self._content = bytearray()

    def take(self, message: Message) -> bool:
        """Keep a chunk. Returns whether to continue reading."""
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        piece = message.get("body", b"")[: MAX_BYTES + 1 - len(self._content)]
        beyond = max(0, len(self._content) + len(piece) - FREE_BYTES) - self._reserved
        if beyond > 0:
            self._bodies.reserve(beyond)
            self._reserved += beyond
        self._content += piece
        return bool(message.get("more_body", False)) and len(self._content) <= MAX_BYTES

    def refuse(self, scope: Message, code: str) -> None:
        scope[REFUSED] = code
        self.release()

    def stream(self) -> BytesIO:
        return BytesIO(self._content)

    def release(self) -> None:
        self._bodies.release_bytes(self._reserved)
        self._reserved = 0
        self._content = bytearray()


class RefusedBodies:
    """Answer 408 or 503 for a request whose body was dropped, so that no view sees half of it."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        code = getattr(request, "scope", {}).get(REFUSED)
        if code is None:
            return self.get_response(request)
        status, text = REFUSALS[code]
        response = answer(request, status, code, text)
        if status == 503:
            response.headers["Retry-After"] = str(RETRY_AFTER_S)
        return response
