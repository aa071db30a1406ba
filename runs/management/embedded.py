"""The web server and the worker in one process: they start together and end together.

A door's part: may import uvicorn and the engine; names the ASGI application by string.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType

import uvicorn
from django.conf import settings

from runs.engine.worker import Worker

APPLICATION = "agentops.asgi:application"
HOST = "127.0.0.1"
#: How long open requests, and then the current awaits of runs, may still take at the end.
REQUESTS_END_S = 2
AWAITS_END_S = 2.0
WORKER_ENDS_S = 6.0
BACKLOG = 2048
#: Signals that come together are one wish.
ONE_WISH_S = 0.3


class PortUnusable(Exception):
    """Nobody can be served there."""

    code = "port_unusable"
    exit_code = 5


class Ending:
    """What SIGINT and SIGTERM do: the first ends everything in order, a second one at once."""

    def __init__(self) -> None:
        self._asked_at: float | None = None

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self)

    def __call__(self, number: int, _: FrameType | None) -> None:
        """Where the web server does not have the signals: before it starts and after it has ended."""
        if self.first(number):
            raise SystemExit(0)

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


class Server(uvicorn.Server):
    """Uvicorn that says when it answers, and tells the worker to end as soon as it is told itself."""

    def __init__(self, config: uvicorn.Config, worker: Worker, ending: Ending, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._worker = worker
        self._ending = ending
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            # On a thread: Django refuses to use the database on an event loop's.
            await asyncio.to_thread(self._ready)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._worker.ask_to_stop()
        await super().shutdown(sockets=sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not uvicorn's own, which raises the signal again when all is over: then nothing could come after `run`.
        if self._ending.first(sig):
            self.should_exit = True


def listen(port: int) -> socket.socket:
    """The socket of the site, on loopback only. From here on the port is ours; who connects early waits."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # The connections of a process that died shall not keep the port from its successor.
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((HOST, port))
        found.listen(BACKLOG)
    except OSError as error:
        found.close()
        raise PortUnusable(_why(port, error)) from None
    return found


def _why(port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        free = port + 1 if port < 65535 else port - 1
        return f"port {port} is in use: end what listens there, or choose another: PORT={free} make up"
    if error.errno == errno.EACCES:
        return f"port {port} is for root only: choose one above 1023, such as PORT=8000 make up"
    return f"port {port} cannot be used: {error.strerror}"


def serve(site: socket.socket, worker: Worker, ending: Ending, ready: Callable[[], None]) -> None:
    """Serve and work until a signal says otherwise; then runs in flight are handed back."""
    # The same signal ends a worker on its own within AGENTOPS_GRACE_S; at a terminal nobody waits that long.
    settings.AGENTOPS_GRACE_S = min(settings.AGENTOPS_GRACE_S, AWAITS_END_S)
    config = uvicorn.Config(
        APPLICATION,
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="on",
        server_header=False,
        timeout_graceful_shutdown=REQUESTS_END_S,
    )
    try:
        Server(config, worker, ending, ready).run(sockets=[site])
    finally:
        worker.close(WORKER_ENDS_S)
