"""The ASGI application around Django: it serves streams itself, and hands every other request on.

A stream's view is an ordinary one: it runs with
all middleware on one of a few threads and answers what is to be streamed; from then on no thread and no database
connection belongs to the client. Under Django's own handler each open stream would occupy a thread.
"""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.core import signals
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.base import BaseHandler
from django.http import HttpResponse, HttpResponseBase
from django.urls import get_resolver, set_script_prefix

from timeline.live.client import Client
from timeline.live.hub import Hub, TooMany
from timeline.live.response import EventStreamResponse

log = logging.getLogger(__name__)
Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Any, Any, Any], Awaitable[None]]
#: How many requests for streams are let in at the same time; the others wait, a few milliseconds each.
DOOR_THREADS = 2
RETRY_AFTER_S = 5


class LiveServer:
    """`LiveServer(django)` is what uvicorn runs: streams by path, lifespan, and Django for the rest."""

    def __init__(self, django: Application) -> None:
        self._django = django
        self._door = Door()
        self._hub: Hub | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http" and scope["path"].endswith("/stream"):
            await self._stream(scope, receive, send)
        else:
            await self._django(scope, receive, send)

    def hub(self) -> Hub:
        if self._hub is None:
            self._hub = Hub()
        return self._hub

    def drain(self) -> None:
        """End every stream, and begin no other: whoever ends the server calls it first, on the loop."""
        if self._hub is not None:
            self._hub.drain()

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._door.ask(scope)
        if not isinstance(response, EventStreamResponse):
            await self._door.send_response(response, send)
            return
        try:
            async with self.hub().client(response) as client:
                await _begin(response, send)
                await _converse(client, receive, send)
        except TooMany as refusal:
            await self._door.send_response(_refused(refusal), send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """The lifespan protocol: streams end as soon as the process is told to, not after the server's grace."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                _settle()
                self._drain_on_signals(asyncio.get_running_loop())
                await send({"type": "lifespan.startup.complete"})
            else:
                if self._hub is not None:
                    await self._hub.close()
                    self._hub = None
                self._door.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    def _drain_on_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        """Before the server's own handlers, which wait until open responses have ended by themselves."""
        if threading.current_thread() is not threading.main_thread():
            return  # signals are the main thread's; a server in another one is told to stop in another way

        for number in (signal.SIGTERM, signal.SIGINT):
            before = signal.getsignal(number)

            def handle(received: int, frame: Any, before: Any = before) -> None:
                loop.call_soon_threadsafe(self.drain)
                if callable(before):
                    before(received, frame)

            signal.signal(number, handle)


class Door(ASGIHandler):
    """Django's synchronous request handling on a few threads of its own."""

    def __init__(self) -> None:
        BaseHandler.__init__(self)
        self.load_middleware(is_async=False)
        self._threads: ThreadPoolExecutor | None = None

    async def ask(self, scope: Scope) -> HttpResponseBase:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(DOOR_THREADS, thread_name_prefix="stream-door")
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._answer, scope)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    def _answer(self, scope: Scope) -> HttpResponseBase:
        set_script_prefix(get_script_prefix(scope))
        signals.request_started.send(sender=type(self), scope=scope)
        request, refusal = self.create_request(scope, io.BytesIO())
        response = self.get_response(request) if request is not None else refusal
        assert response is not None
        # Tells everyone that the request is over: the thread's connections are given back.
        response.close()
        return response


def _settle() -> None:
    """Load what the first request would load, then keep the collector from walking over it: a full collection of all
    that Django and the libraries hold stops every stream for a tenth of a second."""
    _ = get_resolver().url_patterns
    gc.collect()
    gc.freeze()


async def _begin(response: EventStreamResponse, send: Send) -> None:
    headers = [
        (name.lower().encode("ascii"), value.encode("latin1"))
        for name, value in response.items()
        if name.lower() != "content-length"  # of the body that a server without streams would send
    ]
    cookies = [(b"set-cookie", morsel.output(header="").strip().encode()) for morsel in response.cookies.values()]
    await send({"type": "http.response.start", "status": 200, "headers": headers + cookies})


async def _converse(client: Client, receive: Receive, send: Send) -> None:
    """Send until the stream is over or the reader has left; whatever happens, nothing is raised from here."""
    sending = asyncio.create_task(_send_all(client.frames(), client, send))
    leaving = asyncio.create_task(_until_left(receive))
    try:
        await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        # The hub's doing, where the reader takes nothing any more, or the server's at its end.
        log.info("live: a stream was cut")
    finally:
        for task in (sending, leaving):
            task.cancel()
        for outcome in await asyncio.gather(sending, leaving, return_exceptions=True):
            if isinstance(outcome, Exception):
                log.error("live: a stream broke", exc_info=outcome)


async def _send_all(frames: AsyncIterator[bytes], client: Client, send: Send) -> None:
    async for frame in frames:
        client.sending_since = time.monotonic()
        await send({"type": "http.response.body", "body": frame, "more_body": True})
        client.sending_since = None
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _refused(refusal: TooMany) -> HttpResponse:
    problem = {"type": "about:blank", "title": str(refusal), "status": refusal.status, "code": refusal.code}
    response = HttpResponse(json.dumps(problem), status=refusal.status, content_type="application/problem+json")
    response.headers["Retry-After"] = str(RETRY_AFTER_S)
    response.headers["Cache-Control"] = "no-store"
    return response
