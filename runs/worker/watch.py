"""Wakes a thread of the worker when there is something to do."""

from __future__ import annotations

import random
import threading

from django.conf import settings

from runs.engine.shutdown import Shutdown


class Watch:
    """Wakes its thread when somebody says so, at the latest after AGENTOPS_SWEEP_S, and at the shutdown."""

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
