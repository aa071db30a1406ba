"""Reads request bodies completely before a thread is used, within limits of size, time, memory and disk space.

agentops.base.http.threaded calls `Bodies.read`. The middleware `RefusedBodies` responds if a body was refused. Bodies
of uploads (UPLOAD_PATHS) may be longer. They, and the files in them, are stored in temporary files.
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
from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import FileUploadHandler
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from agentops.base.http.error_pages import answer

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]

MIB = 1024 * 1024
#: Maximum bytes of a body, except for uploads. Of a longer body one byte more is kept, by which the view sees that the
#: body is too long.
MAX_BYTES = 5 * MIB
#: Bytes of a body that do not count towards SHARED_BYTES.
FREE_BYTES = 64 * 1024
#: Maximum bytes of memory that all bodies of a process use together.
SHARED_BYTES = 128 * MIB
#: The paths of uploads: the page and the API of imports.
UPLOAD_PATHS = re.compile(r"/(p|api/projects)/[^/]+/imports")
#: Maximum bytes that a form adds to the files of an upload.
FORM_BYTES = MIB
#: Maximum bytes on disk that all uploads of a process use together. Django copies the files of forms, so that uploads
#: need twice the space.
SHARED_DISK_BYTES = 128 * MIB + 2 * FORM_BYTES
#: Key in the ASGI scope of a refused body; the value is a key of REFUSALS.
REFUSED = "agentops.refused"
LATE, FULL, TOO_LARGE = "request_timeout", "too_many_bodies", "body_too_large"
RETRY_AFTER_S = 5
#: Code → status and text, into which the maximum MiB of an upload is inserted.
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
    """The bodies that one process is reading, in its event loop."""

    #: Maximum bytes that all bodies use together.
    shared_bytes: int = SHARED_BYTES
    #: The bodies of uploads, which have a limit of their own.
    uploads: Bodies | None = None
    _reserved: int = field(default=0, init=False)

    async def read(self, scope: Message, receive: Receive) -> RequestBody:
        """Return the whole body. Raises `ClientDisconnected`.

        A body is refused, by an entry in `scope`, if it takes longer than AGENTOPS_BODY_TIMEOUT_S (uploads:
        AGENTOPS_UPLOAD_TIMEOUT_S), or if all bodies together exceed the limit. A body whose Content-Length is too large
        is not read. Uploads that are too large are refused; other bodies are left to the view.
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
            body.handle_excess(scope)
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
            body.handle_excess(scope)
        return body

    def reserve(self, count: int) -> None:
        """Reserve bytes. Raises `MemoryError` if all bodies together would exceed the limit."""
        if self._reserved + count > self.shared_bytes:
            raise MemoryError
        self._reserved += count

    def release_bytes(self, count: int) -> None:
        self._reserved -= count


class RequestBody:
    """The body of one request. `release` gives back the bytes that it has reserved."""

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
        """Store a part of the body. Return whether to continue reading."""
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        part = message.get("body", b"")[: self.max_bytes + 1 - self._size]
        missing = max(0, self._size + len(part) - FREE_BYTES) - self._reserved
        if missing > 0:
            self._bodies.reserve(missing)
            self._reserved += missing
        self._content.write(part)
        self._size += len(part)
        return bool(message.get("more_body", False)) and not self.is_too_long

    def refuse(self, scope: Message, code: str) -> None:
        """Drop the body, and mark the request, so that `RefusedBodies` responds with REFUSALS[code]."""
        scope[REFUSED] = code
        self.release()

    def handle_excess(self, scope: Message) -> None:
        """Do nothing: the view refuses a body that is too long. It sees the additional byte, or the Content-Length."""

    def stream(self) -> IO[bytes]:
        self._content.seek(0)
        return self._content

    def release(self) -> None:
        """Drop the content, and give back its bytes."""
        self._bodies.release_bytes(self._reserved)
        self._reserved = 0
        self._content.close()
        self._content, self._size = BytesIO(), 0

    def _open(self) -> IO[bytes]:
        return BytesIO()


class UploadBody(RequestBody):
    """The body of an upload, in a temporary file unless it is short."""

    @property
    def max_bytes(self) -> int:
        return int(settings.AGENTOPS_UPLOAD_MIB) * MIB + FORM_BYTES

    def handle_excess(self, scope: Message) -> None:
        """Refuse the upload."""
        # Not left to the view, because the CSRF check would read the incomplete form, and report a missing token.
        self.refuse(scope, TOO_LARGE)

    def _open(self) -> IO[bytes]:
        return SpooledTemporaryFile(max_size=FREE_BYTES)


class RefusedBodies:
    """The middleware that responds to requests whose body was refused, so that no view sees a part of a body."""

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


#: Maximum bytes of a file that stays in memory.
MEMORY_BYTES = 64 * 1024


class NamelessFileHandler(FileUploadHandler):
    """Stores an uploaded file without a name in the file system: even if the process is killed, nothing remains."""

    #: The file that is being received.
    _content: IO[bytes] | None = None

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        super().new_file(*args, **kwargs)
        self.upload_interrupted()
        self._content = SpooledTemporaryFile(max_size=MEMORY_BYTES)  # noqa: SIM115 - closed below

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        assert self._content is not None
        self._content.write(raw_data)

    def file_complete(self, file_size: int) -> UploadedFile[bytes]:
        content, self._content = self._content, None  # Django closes the file with the request
        assert content is not None
        content.seek(0)
        return UploadedFile(content, self.file_name, self.content_type, file_size, self.charset)

    def upload_interrupted(self) -> None:
        if self._content is not None:
            self._content.close()

    def __del__(self) -> None:
        # Django does not call `upload_interrupted` if a form ends within a file.
        self.upload_interrupted()
