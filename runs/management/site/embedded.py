"""The web server and the worker in one process: they start together and end together."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType

import uvicorn
from django.conf import settings

from runs.management.site.web_server import allow_connections, web_config
from runs.management.site.worker_thread import WorkerThread

HOST = "127.0.0.1"
#: How long open requests, and then the current awaits of runs, may still take at the end.
REQUESTS_END_S = 2
AWAITS_END_S = 2.0
#: Signals that come together are one wish.
ONE_WISH_S = 0.3


class Ending:
    """What SIGINT and SIGTERM do: the first ends everything in order, a second one at once."""

    def __init__(self) -> None:
        self._asked_at: float | None = None

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self)

    def __call__(self, number: int, _: FrameType | None) -> None:
        """Handle a signal before the web server starts, or after it has ended.

        Ends the process without an exception, which would be lost if the signal came during a finalizer. Nothing needs
        to be cleaned up: a process that is killed here leaves the home in order too.
        """
        if self.first(number):
            os._exit(0)

    def first(self, number: int) -> bool:
        """Whether this is the first signal. Does not return where it is a second one."""
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at = now
            return True
        # Some send one wish twice: `timeout` signals the process and then its group.
        if now - self._asked_at > ONE_WISH_S:
            os._exit(128 + number)
        return False


class EmbeddedServer(uvicorn.Server):
    """Uvicorn that starts the worker when it answers, and tells it to end as soon as it is told itself."""

    def __init__(self, config: uvicorn.Config, ending: Ending, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.worker = WorkerThread(on_end=self._end)
        self._ending = ending
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            # On a thread: Django refuses to use the database on an event loop's.
            await asyncio.to_thread(self._ready)
            await asyncio.to_thread(self.worker.start)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.worker.ask_to_stop()
        await super().shutdown(sockets=sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not uvicorn's own, which raises the signal again when all is over: then nothing could come after `run`.
        if self._ending.first(sig):
            self.should_exit = True

    def _end(self) -> None:
        self.should_exit = True


def serve(site: socket.socket, ending: Ending, ready: Callable[[], None]) -> int:
    """Serve and work until a signal says otherwise; then runs in flight are handed back. Returns the exit code."""
    # The same signal ends a worker on its own within AGENTOPS_GRACE_S; at a terminal nobody waits that long.
    settings.AGENTOPS_GRACE_S = min(settings.AGENTOPS_GRACE_S, AWAITS_END_S)
    allow_connections(settings.AGENTOPS_CONNECTIONS)
    config = web_config(timeout_graceful_shutdown=REQUESTS_END_S)
    server = EmbeddedServer(config, ending, ready)
    try:
        server.run(sockets=[site])
    finally:
        code = server.worker.close()
    return code
