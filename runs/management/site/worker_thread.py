"""Celery's worker in a thread of the web server's process: as in `agentops worker`, without signal handlers.

Its broker is in memory and carries the messages of this process. What it does at its start and its end is in
runs/worker/startup.py.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from django.utils.module_loading import import_string

from runs.lifecycle.wake import CELERY_APP
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
            hostname=f"up-{os.getpid()}@{socket.gethostname()}",
            pool_cls="threads",
            without_heartbeat=True,
        )
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Claim no more runs."""
        worker.current().ask_to_stop()

    def close(self) -> int:
        """Hand the runs back and end. Return 0, or the exit code of a worker that failed."""
        if self._thread.is_alive():
            self._controller.stop()
        return getattr(self._controller, "exitcode", None) or 0

    def _work(self) -> None:
        self._controller.start()
        self._on_end()
