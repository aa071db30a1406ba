"""The web server and the worker in one process. They start and end together."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from django.conf import settings
from django.utils.module_loading import import_string

from runs.lifecycle.wake import CELERY_APP
from runs.management.site.web_server import allow_connections, web_config
from runs.worker import worker


class WorkerThread:
    """A Celery worker that can be started once. It calls `on_end` when it ends, also after a failure."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._controller: Any = None
        self._thread = threading.Thread(target=self._work, name="celery", daemon=True)

    def start(self) -> None:
        """Load Celery, which takes half a second, and start the thread."""
        # WorkController installs no signal handlers; the web server has them.
        self._controller = import_string(CELERY_APP).WorkController(
            hostname=f"up-{os.getpid()}@{socket.gethostname()}", pool_cls="threads", without_heartbeat=True
        )
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Tell the worker to claim no more runs."""
        worker.current().ask_to_stop()

    def close(self) -> int:
        """Hand the runs back and end. Return 0, or the exit code of a worker that failed."""
        if self._thread.is_alive():
            self._controller.stop()
        return getattr(self._controller, "exitcode", None) or 0

    def _work(self) -> None:
        self._controller.start()
        self._on_end()


# --- Both together ---

HOST = "127.0.0.1"
#: Seconds that open requests may take during shutdown.
REQUESTS_END_S = 2
#: Seconds that the current calls of runs may then take.
RUNS_END_S = 2.0
#: Signals within these seconds count as one.
ONE_SIGNAL_S = 0.3


class SignalHandler:
    """The handler of SIGINT and SIGTERM: the first signal shuts down in order, a second one immediately."""

    def __init__(self) -> None:
        self._first_signal_at: float | None = None

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self)

    def __call__(self, number: int, _: FrameType | None) -> None:
        """Handle a signal before the web server starts, or after it has ended.

        Ends the process without an exception, which would be lost if the signal came during a finalizer. No cleanup is
        needed: a killed process also leaves the home in order.
        """
        if self.is_first(number):
            os._exit(0)

    def is_first(self, number: int) -> bool:
        """Return whether this is the first signal. A later second signal ends the process at once."""
        now = time.monotonic()
        if self._first_signal_at is None:
            self._first_signal_at = now
            return True
        # Some programs send the signal twice: `timeout` signals the process and then its group.
        if now - self._first_signal_at > ONE_SIGNAL_S:
            os._exit(128 + number)
        return False


class EmbeddedServer(uvicorn.Server):
    """Uvicorn that starts the worker after its own start, and stops the worker at its shutdown."""

    def __init__(self, config: uvicorn.Config, signal_handler: SignalHandler, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.worker = WorkerThread(on_end=self._end)
        self._signal_handler = signal_handler
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            # In a thread, because Django refuses database access in the thread of an event loop.
            await asyncio.to_thread(self._ready)
            await asyncio.to_thread(self.worker.start)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.worker.ask_to_stop()
        await super().shutdown(sockets=sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # uvicorn's own handler would raise the signal again after `run`, before the code that follows it.
        if self._signal_handler.is_first(sig):
            self.should_exit = True

    def _end(self) -> None:
        self.should_exit = True


def serve(site: socket.socket, signal_handler: SignalHandler, ready: Callable[[], None]) -> int:
    """Serve and execute runs until a signal, then hand the runs back. Returns the exit code."""
    # A separate worker uses AGENTOPS_GRACE_S. This limit is shorter, because a user waits at the terminal.
    settings.AGENTOPS_GRACE_S = min(settings.AGENTOPS_GRACE_S, RUNS_END_S)
    allow_connections(settings.AGENTOPS_CONNECTIONS)
    config = web_config(timeout_graceful_shutdown=REQUESTS_END_S)
    server = EmbeddedServer(config, signal_handler, ready)
    try:
        server.run(sockets=[site])
    finally:
        code = server.worker.close()
    return code
