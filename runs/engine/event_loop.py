"""The event loop on which all model calls of a process run, in a thread of its own.

Provider clients keep connections that belong to their loop, so one loop per call would break them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="model-calls", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start `work` on the loop. Cancelling the future cancels the work."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def ask_to_stop(self) -> None:
        """Stop the loop once it has finished what it is doing now. Does nothing if it is closed."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)

    def close(self, until: float) -> None:
        """Stop, and wait for the thread until a time of `time.monotonic()`."""
        self.ask_to_stop()
        self._thread.join(max(until - time.monotonic(), 0))
        if not self._thread.is_alive():
            self._loop.close()
