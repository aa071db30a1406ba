"""Django behind ASGI: the event loop reads bodies, and a few threads process requests.

Django's own handler starts a thread for each request and switches threads several times; here a request needs one
switch, and slow clients occupy no thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from django.conf import settings
from django.core import signals
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.base import BaseHandler
from django.db import close_old_connections
from django.http import HttpResponseBase
from django.urls import set_script_prefix

from agentops.base.http.asgi_response import AsgiResponse
from agentops.base.http.body_limit import SHARED_DISK_BYTES, Bodies, ClientDisconnected, RequestBody
from agentops.base.http.lanes import Lanes, sender_project, sender_user
from agentops.base.http.utf8_requests import AsgiRequest
from agentops.base.limits.work_budget import process_ends

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class ThreadedDjango(ASGIHandler):
    """Django's synchronous handler in AGENTOPS_WEB_THREADS threads. Further requests wait."""

    request_class = AsgiRequest

    def __init__(self) -> None:
        BaseHandler.__init__(self)
        self.load_middleware(is_async=False)
        self._bodies = Bodies(uploads=Bodies(SHARED_DISK_BYTES))
        self._threads = ThreadPoolExecutor(settings.AGENTOPS_WEB_THREADS, thread_name_prefix="web")
        #: Set at the end of the process to stop running computations: their threads cannot be killed, and the process
        #: waits for them.
        self._ends = threading.Event()
        self._lanes = Lanes(settings.AGENTOPS_WEB_THREADS_PER_KEY, settings.AGENTOPS_WEB_THREADS_PER_PROJECT)

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        try:
            body = await self._bodies.read(scope, receive)
        except ClientDisconnected:
            return
        try:
            # A new context, because the context of a thread would persist between requests.
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
        """Allow requests to compute until the end of the block; then end their remaining computations."""
        self._ends.clear()
        try:
            yield
        finally:
            self._ends.set()

    def _respond(self, scope: Message, body: RequestBody) -> tuple[HttpResponseBase, bytes | None]:
        """Return the response, with its content unless it is streamed."""
        process_ends.set(self._ends)
        set_script_prefix(get_script_prefix(scope))
        signals.request_started.send(sender=type(self), scope=scope)
        request, refusal = self.create_request(scope, body.stream())
        response = self.get_response(request) if request is not None else refusal
        assert response is not None
        if response.streaming:
            # The database connection belongs to this thread, and other threads may produce the pieces.
            close_old_connections()
            return response, None
        try:
            # At once: responses are small, and a slow client must not occupy a thread.
            return response, b"".join(response)
        finally:
            # Ends the request and returns the database connection of the thread.
            response.close()

    async def _send_pieces(
        self, scope: Message, context: contextvars.Context, response: HttpResponseBase, receive: Receive, send: Send
    ) -> None:
        """Send long content piece by piece, until the client disconnects. A slow client occupies no thread."""
        loop, gone, pieces = asyncio.get_running_loop(), asyncio.ensure_future(_disconnected(receive)), iter(response)
        make = partial(context.run, _next_piece, pieces)
        try:
            await _send_head(response, send)
            while not gone.done():
                async with self._lanes.enter(scope):
                    piece = await loop.run_in_executor(self._threads, make)
                await send({"type": "http.response.body", "body": piece or b"", "more_body": piece is not None})
                if piece is None:
                    break
        finally:
            gone.cancel()
            await loop.run_in_executor(self._threads, partial(context.run, response.close))


def _next_piece(pieces: Iterator[bytes]) -> bytes | None:
    try:
        return next(pieces, None)
    finally:
        # Returns the connection of this thread: another thread may produce the next piece.
        close_old_connections()


async def _send_head(response: HttpResponseBase, send: Send) -> None:
    headers = [(name.encode("ascii"), value.encode("latin1")) for name, value in response.items()]
    cookies = [(b"set-cookie", morsel.output(header="").strip().encode()) for morsel in response.cookies.values()]
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers + cookies})


async def _disconnected(receive: Receive) -> None:
    # The body of the request comes first, if it was not read.
    while (await receive())["type"] != "http.disconnect":
        pass
