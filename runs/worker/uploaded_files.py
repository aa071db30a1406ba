"""Imports uploaded files in every worker, one at a time, in a thread of its own."""

from __future__ import annotations

import random
import threading

from django.conf import settings

from runs.engine.shutdown import Shutdown
from runs.external.uploads import execution
from runs.worker.housekeeping import going_on


class UploadWatch:
    """Wakes the thread when a file was uploaded, at the latest after AGENTOPS_SWEEP_S, and at the shutdown."""

    def __init__(self, shutdown: Shutdown) -> None:
        self._shutdown = shutdown
        self._look = threading.Event()

    def look(self) -> None:
        self._look.set()

    def is_stopping(self) -> bool:
        return self._shutdown.requested.is_set()

    def wait(self) -> None:
        # Jitter, so that workers that were started together do not query together.
        self._look.wait(settings.AGENTOPS_SWEEP_S * random.uniform(0.8, 1.0))  # noqa: S311 - spreads load only
        self._look.clear()


def import_uploaded_files(watch: UploadWatch) -> None:
    """Import uploaded files until the process ends. Errors do not end the worker."""
    while not watch.is_stopping():
        with going_on("the import of uploaded files"):
            while execution.import_next(watch.is_stopping) and not watch.is_stopping():
                pass
        watch.wait()
