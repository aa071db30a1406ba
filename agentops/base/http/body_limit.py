"""Read request bodies completely before a thread is used, within limits of size, time, memory and disk space.

agentops.base.http.threaded reads bodies with this module. The middleware in this module responds to refused bodies.
Bodies of uploads (UPLOAD_PATHS) may be longer, and are kept in temporary files.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from io import BytesIO
from tempfile import SpooledTemporaryFile
from typing import IO, Any

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from agentops.base.http.error_pages import answer

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]

#: Maximum bytes of a body that a view reads. One byte more of a longer body is kept, so that the view detects it.
MAX_BYTES = 5 * 1024 * 1024
#: Bytes of a body that do not count towards the memory that all bodies of a process share.
FREE_BYTES = 64 * 1024
SHARED_BYTES = 128 * 1024 * 1024
MIB = 1024 * 1024
#: The paths of uploads: the page and the API of imports.
UPLOAD_PATHS = re.compile(r"/(p|api/projects)/[^/]+/imports")
#: Bytes that a form adds to the files of an upload.
FORM_BYTES = MIB
#: Bytes on disk that all uploads of a process share. Django's forms copy files, so uploads need twice the space.
SHARED_DISK_BYTES = 128 * MIB + 2 * FORM_BYTES
#: Key in the ASGI scope of a refused body; the value is a key of REFUSALS.
REFUSED = "agentops.refused"
LATE, FULL, TOO_LARGE = "request_timeout", "too_many_bodies", "body_too_large"
RETRY_AFTER_S = 5
#: Code → status and text.
REFUSALS = {
    LATE: (408, "The body was not received within the time limit."),
    FULL: (503, "The server is reading too many large bodies. Try again in 5 seconds."),
    TOO_LARGE: (413, "The upload is larger than {} MiB. Upload fewer files at a time."),
}


class ClientDisconnected(Exception):
    """The client closed the connection before its request was complete."""


def is_upload(method: str | None, path: str) -> bool:
    """Return whether a request uploads files."""
    return method == "POST" and UPLOAD_PATHS.fullmatch(path) is not None


@dataclass
class Bodies:
    """The bodies that one process is reading. Used on its event loop only."""

    shared_bytes: int = SHARED_BYTES
    #: The shared limits of upload bodies.
    uploads: Bodies | None = None
    _reserved: int = field(default=0, init=False)

    async def read(self, scope: Message, receive: Receive) -> RequestBody:
        """Return the whole body. Raises ClientDisconnected.

        A body that takes longer than AGENTOPS_BODY_TIMEOUT_S, or exceeds the available memory, is dropped and marked in
        `scope`. A body with an excessive Content-Length is not read: the view sees the header. Uploads may take
        AGENTOPS_UPLOAD_TIMEOUT_S; uploads that are too long are dropped and marked.
        """
        if self.uploads is not None and is_upload(scope["method"], scope["path"]):
            body: RequestBody = UploadBody(self.uploads)
            seconds = settings.AGENTOPS_UPLOAD_TIMEOUT_S
        else:
            body, seconds = RequestBody(self), settings.AGENTOPS_BODY_TIMEOUT_S
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"")
        if not length and b"transfer-encoding" not in headers:
            return body
        if length.isdigit() and (len(length) > 18 or int(length) > body.max_bytes):
            body.exceed(scope)
            return body
        try:
            async with asyncio.timeout(seconds):
                while body.take(await receive()):
                    pass
        except TimeoutError:
            body.refuse(scope, LATE)
        except (MemoryError, OSError):
            body.refuse(scope, FULL)
        except BaseException:
            body.release()
            raise
        if body.is_too_long:
            body.exceed(scope)
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
        self._size = 0
        self._content: IO[bytes] = self._open()

    @property
    def max_bytes(self) -> int:
        return MAX_BYTES

    @property
    def is_too_long(self) -> bool:
        return self._size > self.max_bytes

    def take(self, message: Message) -> bool:
        """Keep a chunk. Return whether to continue reading."""
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        piece = message.get("body", b"")[: self.max_bytes + 1 - self._size]
        beyond = max(0, self._size + len(piece) - FREE_BYTES) - self._reserved
        if beyond > 0:
            self._bodies.reserve(beyond)
            self._reserved += beyond
        self._content.write(piece)
        self._size += len(piece)
        return bool(message.get("more_body", False)) and not self.is_too_long

    def refuse(self, scope: Message, code: str) -> None:
        scope[REFUSED] = code
        self.release()

    def exceed(self, scope: Message) -> None:
        """Mark the body as too long: the view sees one byte too many, or the Content-Length."""

    def stream(self) -> IO[bytes]:
        self._content.seek(0)
        return self._content

    def release(self) -> None:
        self._bodies.release_bytes(self._reserved)
        self._reserved = 0
        self._content.close()
        self._content, self._size = BytesIO(), 0

    def _open(self) -> IO[bytes]:
        return BytesIO()


class UploadBody(RequestBody):
    """The body of an upload: in a temporary file, unless it is short."""

    @property
    def max_bytes(self) -> int:
        return int(settings.AGENTOPS_UPLOAD_MIB) * MIB + FORM_BYTES

    def exceed(self, scope: Message) -> None:
        # Before the CSRF check, which would read the form and find nothing.
        self.refuse(scope, TOO_LARGE)

    def _open(self) -> IO[bytes]:
        return SpooledTemporaryFile(max_size=FREE_BYTES)


class RefusedBodies:
    """Respond with 408 or 503 to a request whose body was dropped, so that no view sees part of it."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        code = getattr(request, "scope", {}).get(REFUSED)
        if code is None:
            return self.get_response(request)
        status, text = REFUSALS[code]
        response = answer(request, status, code, text.format(settings.AGENTOPS_UPLOAD_MIB))
        if status == 503:
            response.headers["Retry-After"] = str(RETRY_AFTER_S)
        return response
