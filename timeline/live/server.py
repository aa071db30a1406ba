"""The ASGI application around Django. It serves streams itself and passes all other requests to Django.

The view of a stream is an ordinary Django view that runs with all middleware on a thread and returns a description of
the stream. After that, the client occupies neither a thread nor a database connection. Under Django's own ASGI
handler each open stream would occupy a thread.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from django.core import signals
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.base import BaseHandler
from django.http import HttpResponse, HttpResponseBase
from django.urls import get_resolver, set_script_prefix

from agentops.base.http.request_bodies import Bodies, ClientDisconnected, RequestBody
from timeline.live.client import Client, retry_line
from timeline.live.hub import Hub, TooMany
from timeline.live.streams import EventStreamResponse

log = logging.getLogger(__name__)
Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Any, Any, Any], Awaitable[None]]
#: Path suffixes of streams. Requests to /ag-ui have a body.
STREAMS = ("/stream", "/ag-ui")
#: The number of stream requests whose views run at the same time.
REQUEST_THREADS = 2
RETRY_AFTER_S = 5
#: New objects before a garbage collection. With Python's default of 700, collections took 3 % of the time of a batch of
#: events.
COLLECT_AFTER = 10_000


class LiveServer:
    """The ASGI application: streams (paths of STREAMS), lifespan events, and Django for other requests."""

    def __init__(
        self, django: Application, while_running: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        """`while_running` returns a context that is active while the server runs."""
        self._django = django
        self._while_running = while_running
        self._bodies = Bodies()
        self._handler = StreamRequestHandler()
        self._hub: Hub | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._handle_lifespan(receive, send)
        elif scope["type"] == "http" and scope["path"].endswith(STREAMS):
            await self._stream(scope, receive, send)
        else:
            await self._django(scope, receive, send)

    def hub(self) -> Hub:
        """Return the hub, creating it on first use."""
        if self._hub is None:
            self._hub = Hub()
        return self._hub

    def drain(self) -> None:
        """End all streams; new ones are empty. Call it on the loop before the server shuts down."""
        if self._hub is not None:
            self._hub.drain()

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await self._bodies.read(scope, receive)
        except ClientDisconnected:
            return
        try:
            response = await self._handler.respond(scope, body)
        finally:
            body.release()
        if not isinstance(response, EventStreamResponse):
            await self._handler.send_response(response, send)
            return
        if self.hub().is_draining:
            # An EventSource gives up after any status but 200. After an empty stream it reconnects.
            await _begin(response, send)
            await send({"type": "http.response.body", "body": retry_line()})
            return
        try:
            async with self.hub().client(response) as client:
                await _begin(response, send)
                await _send_until_end(client, receive, send)
        except TooMany as refusal:
            await self._handler.send_response(_refusal(refusal), send)

    async def _handle_lifespan(self, receive: Receive, send: Send) -> None:
        """Handle the lifespan protocol of ASGI: start and shutdown of the server."""
        context = ExitStack()
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                context.enter_context(self._while_running())
                _freeze_objects()
                self._drain_on_signals(asyncio.get_running_loop())
                await send({"type": "lifespan.startup.complete"})
            else:
                if self._hub is not None:
                    await self._hub.close()
                    self._hub = None
                self._handler.close()
                # In a thread, because Django refuses database access in the thread of an event loop.
                await asyncio.to_thread(context.close)
                await send({"type": "lifespan.shutdown.complete"})
                return

    def _drain_on_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        """Drain on signals, before the server's own handlers, which wait for open responses to end."""
        if threading.current_thread() is not threading.main_thread():
            return  # signal handlers can be set on the main thread only

        for number in (signal.SIGTERM, signal.SIGINT):
            previous = signal.getsignal(number)

            def handle(received: int, frame: Any, previous: Any = previous) -> None:
                loop.call_soon_threadsafe(self.drain)
                if callable(previous):
                    previous(received, frame)

            signal.signal(number, handle)


class StreamRequestHandler(ASGIHandler):
    """Runs Django's synchronous request handling for stream requests, on its own threads."""

    def __init__(self) -> None:
        BaseHandler.__init__(self)
        self.load_middleware(is_async=False)
        self._threads: ThreadPoolExecutor | None = None

    async def respond(self, scope: Scope, body: RequestBody) -> HttpResponseBase:
        """Return the response of the view."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(REQUEST_THREADS, thread_name_prefix="stream-request")
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._answer, scope, body)

    def close(self) -> None:
        """End the threads without waiting."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    def _answer(self, scope: Scope, body: RequestBody) -> HttpResponseBase:
        set_script_prefix(get_script_prefix(scope))
        signals.request_started.send(sender=type(self), scope=scope)
        request, refusal = self.create_request(scope, body.stream())
        response = self.get_response(request) if request is not None else refusal
        assert response is not None
        # Sends request_finished, which returns the thread's connections to the pool.
        response.close()
        return response


def _freeze_objects() -> None:
    """Load the URL configuration, and exclude all objects so far from garbage collection.

    A full collection of the objects of Django and the libraries would stop all streams for 0.1 s.
    """
    _ = get_resolver().url_patterns
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)


async def _begin(response: EventStreamResponse, send: Send) -> None:
    """Send the status and the headers of a stream."""
    headers = [
        (name.lower().encode("ascii"), value.encode("latin1"))
        for name, value in response.items()
        if name.lower() != "content-length"  # the length of the body that a WSGI server would send
    ]
    cookies = [(b"set-cookie", morsel.output(header="").strip().encode()) for morsel in response.cookies.values()]
    await send({"type": "http.response.start", "status": 200, "headers": headers + cookies})


async def _send_until_end(client: Client, receive: Receive, send: Send) -> None:
    """Send frames until the stream ends or the client disconnects. Does not raise."""
    sending = asyncio.create_task(_send_all(client.frames(), client, send))
    disconnecting = asyncio.create_task(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({sending, disconnecting}, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        # By the hub, because the client accepts no data, or by the server at shutdown.
        log.info("live: a stream was cancelled")
    finally:
        for task in (sending, disconnecting):
            task.cancel()
        for outcome in await asyncio.gather(sending, disconnecting, return_exceptions=True):
            if isinstance(outcome, Exception):
                log.error("live: a stream failed", exc_info=outcome)


async def _send_all(frames: AsyncIterator[bytes], client: Client, send: Send) -> None:
    async for frame in frames:
        client.sending_since = time.monotonic()
        await send({"type": "http.response.body", "body": frame, "more_body": True})
        client.sending_since = None
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _refusal(refusal: TooMany) -> HttpResponse:
    """Return the response for a refused stream, as problem details (RFC 9457)."""
    problem = {"type": "about:blank", "title": str(refusal), "status": refusal.status, "code": refusal.code}
    response = HttpResponse(json.dumps(problem), status=refusal.status, content_type="application/problem+json")
    response.headers["Retry-After"] = str(RETRY_AFTER_S)
    response.headers["Cache-Control"] = "no-store"
    return response
