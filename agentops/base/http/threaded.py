"""Django behind ASGI: the event loop reads bodies, and a few threads process the requests.

Django's own handler starts a thread for each request, and switches threads several times. Here a request needs one
switch, and slow clients occupy no thread. Requests are in UTF-8: their `charset` is ignored, because Django would
decode with any codec of Python, including compressing ones. A view may leave its response to an ASGI application.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import string
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from django.conf import settings
from django.core import signals
from django.core.handlers.asgi import ASGIHandler, ASGIRequest, get_script_prefix
from django.core.handlers.base import BaseHandler
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponse, HttpResponseBase, UnreadablePostError
from django.urls import set_script_prefix
from django.utils.http import parse_header_parameters

from agentops.base.fair_shares import Lanes, process_ends, sender_project, sender_user
from agentops.base.http.error_pages import API, answer
from agentops.base.http.request_bodies import SHARED_DISK_BYTES, Bodies, ClientDisconnected, RequestBody, is_upload

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Any, Receive, Send], Awaitable[None]]
Writer = Callable[[Application, Any, Receive, Send], Awaitable[None]]

#: The body of an `AsgiResponse` on a WSGI server.
NOT_HERE = "Only the ASGI processes of this site answer this request. Use `agentops serve`.\n"
#: Headers that describe the body NOT_HERE.
OWN = {"content-type", "content-length"}


class AsgiResponse(HttpResponse):
    """A response that an ASGI application writes, to a request that has passed all middleware."""

    def __init__(self, body: bytes, application: Writer) -> None:
        """Prepare a response. `body`: the body of the request. `application` also gets the application of the site."""
        super().__init__(NOT_HERE, content_type="text/plain; charset=utf-8")
        self._body = body
        self._application = application

    async def answer(self, django: Application, scope: Any, receive: Receive, send: Send) -> None:
        """Call the application, and add the headers of this response to the ones that the application sends."""
        messages = [{"type": "http.request", "body": self._body, "more_body": False}]
        common = [
            (name.lower().encode("ascii"), value.encode("latin1"))
            for name, value in self.items()
            if name.lower() not in OWN
        ]

        async def receive_body() -> Message:
            return messages.pop() if messages else await receive()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name for name, _ in common}
                own = [(name, value) for name, value in message.get("headers", []) if name.lower() not in names]
                message = {**message, "headers": [*own, *common]}
            await send(message)

        await self._application(django, scope, receive_body, send_with_headers)


FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
#: Maximum characters of a parameter's name in an error.
MAX_ECHO = 64


class AsgiRequest(ASGIRequest):
    """A request whose query may have any bytes, whose charset is UTF-8, and whose body has a length."""

    def __init__(self, scope: dict[str, Any], body_file: Any) -> None:
        query = scope.get("query_string", b"")
        if isinstance(query, bytes) and not query.isascii():
            # Django would fail to decode such a query. Escaped, it is refused by `Utf8Only`, unless it is UTF-8.
            scope["query_string"] = quote(query, safe=string.printable).encode("ascii")
        super().__init__(scope, body_file)
        # Set for chunked bodies, which were read completely: Django REST framework ignores a body without a length.
        self.META.setdefault("CONTENT_LENGTH", str(body_file.seek(0, os.SEEK_END)))
        body_file.seek(0)

    def _set_content_type_params(self, meta: dict[str, Any]) -> None:
        """Set the content type and its parameters, without applying the charset as Django does."""
        try:
            self.content_type, self.content_params = parse_header_parameters(meta.get("CONTENT_TYPE", ""))
        except ValueError:  # a parameter in RFC 2231 form with an unknown charset
            self.content_type, self.content_params = "", {}


class Utf8Only:
    """The middleware that refuses URLs and forms that are not UTF-8, before any view reads them."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        part = next(_undecodable(request), None)
        if part is None:
            return self.get_response(request)
        text = f"{part} is not UTF-8"
        faults = [{"pointer": part, "code": "invalid_text", "detail": text}]
        return answer(request, 400, "invalid_text", text[0].upper() + text[1:] + ".", also={"errors": faults})


def _undecodable(request: HttpRequest) -> Iterator[str]:
    """Yield the parts that are not UTF-8: "path", "?name" for a parameter, and "body"."""
    if not _is_utf8(_path(request)):
        yield "path"
    query = request.META.get("QUERY_STRING", "")
    if "%" in query or not query.isascii():
        yield from _undecodable_parameters(query.encode("latin-1", "replace"))
    if request.method not in ("GET", "HEAD") and not _is_utf8(_form(request)):
        yield "body"


def _undecodable_parameters(query: bytes) -> Iterator[str]:
    for pair in query.split(b"&"):
        plain = unquote_to_bytes(pair)
        if not _is_utf8(plain):
            name = unquote_to_bytes(pair.partition(b"=")[0])
            yield "?" + ascii(name.decode("utf-8", "replace")[:MAX_ECHO])[1:-1]


def _path(request: HttpRequest) -> bytes:
    """Return the path as sent, without its escapes."""
    scope = getattr(request, "scope", None)
    if scope is None:
        # Under WSGI, Django has decoded the path, and escaped the bytes that are not UTF-8.
        return unquote_to_bytes(request.path_info)
    return unquote_to_bytes(scope.get("raw_path") or scope["path"])


def _form(request: HttpRequest) -> bytes:
    """Return the body of a form without its escapes; empty for bodies of the API and uploads."""
    is_exempt = request.path_info.startswith(API) or is_upload(request.method, request.path_info)
    if request.content_type not in FORMS or is_exempt:
        return b""
    try:
        body = request.body
    except UnreadablePostError:  # the client has disconnected
        return b""
    return unquote_to_bytes(body) if request.content_type == FORMS[0] else body


def _is_utf8(raw: bytes) -> bool:
    if raw.isascii():
        return True
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


class ThreadedDjango(ASGIHandler):
    """Runs Django's synchronous handler in AGENTOPS_WEB_THREADS threads. Further requests wait."""

    request_class = AsgiRequest

    def __init__(self) -> None:
        BaseHandler.__init__(self)
        self.load_middleware(is_async=False)
        self._bodies = Bodies(uploads=Bodies(SHARED_DISK_BYTES))
        self._threads = ThreadPoolExecutor(settings.AGENTOPS_WEB_THREADS, thread_name_prefix="web")
        #: Is set at the end of the process to end computations, because the process waits for their threads.
        self._ends = threading.Event()
        self._lanes = Lanes(settings.AGENTOPS_WEB_THREADS_PER_KEY, settings.AGENTOPS_WEB_THREADS_PER_PROJECT)

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        try:
            body = await self._bodies.read(scope, receive)
        except ClientDisconnected:
            return
        try:
            # A context for this request only. That of a thread would be used for further requests.
            context = contextvars.copy_context()
            respond = partial(context.run, self._respond, scope, body)
            async with self._lanes.enter(scope) as credentials:
                response, content = await asyncio.get_running_loop().run_in_executor(self._threads, respond)
            self._lanes.learn(credentials, project=context.get(sender_project), user=context.get(sender_user))
            if isinstance(response, AsgiResponse):
                await response.answer(self, scope, receive, send)
                return
        finally:
            body.release()
        if content is None:
            await self._send_pieces(scope, context, response, receive, send)
        else:
            await _send_head(response, send)
            await send({"type": "http.response.body", "body": content})

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Within the block, requests may compute. At its end, remaining computations are ended."""
        self._ends.clear()
        try:
            yield
        finally:
            self._ends.set()

    def _respond(self, scope: Message, body: RequestBody) -> tuple[HttpResponseBase, bytes | None]:
        """Return the response, and its content; None for the content of a streamed response."""
        process_ends.set(self._ends)
        set_script_prefix(get_script_prefix(scope))
        signals.request_started.send(sender=type(self), scope=scope)
        request, refusal = self.create_request(scope, body.stream())
        response = self.get_response(request) if request is not None else refusal
        assert response is not None
        if response.streaming:
            # The database connection belongs to this thread, but other threads may produce the pieces.
            close_old_connections()
            return response, None
        try:
            # Read completely, because responses are small, and a slow client must not occupy a thread.
            return response, b"".join(response)
        finally:
            # Ends the request, and returns the database connection of the thread to the pool.
            response.close()

    async def _send_pieces(
        self, scope: Message, context: contextvars.Context, response: HttpResponseBase, receive: Receive, send: Send
    ) -> None:
        """Send long content piece by piece, until the client disconnects. A slow client occupies no thread."""
        loop, disconnected = asyncio.get_running_loop(), asyncio.ensure_future(_wait_for_disconnect(receive))
        next_piece = partial(context.run, _next_piece, iter(response))
        try:
            await _send_head(response, send)
            while not disconnected.done():
                async with self._lanes.enter(scope):
                    piece = await loop.run_in_executor(self._threads, next_piece)
                await send({"type": "http.response.body", "body": piece or b"", "more_body": piece is not None})
                if piece is None:
                    break
        finally:
            disconnected.cancel()
            await loop.run_in_executor(self._threads, partial(context.run, response.close))


def _next_piece(pieces: Iterator[bytes]) -> bytes | None:
    """Return the next piece of a response; None after the last one."""
    try:
        return next(pieces, None)
    finally:
        # Another thread may produce the next piece.
        close_old_connections()


async def _send_head(response: HttpResponseBase, send: Send) -> None:
    headers = [(name.encode("ascii"), value.encode("latin1")) for name, value in response.items()]
    cookies = [(b"set-cookie", morsel.output(header="").strip().encode()) for morsel in response.cookies.values()]
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers + cookies})


async def _wait_for_disconnect(receive: Receive) -> None:
    # A body that was not read comes before the message of the disconnect.
    while (await receive())["type"] != "http.disconnect":
        pass
