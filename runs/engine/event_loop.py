"""The event loop that runs all model calls of a process, in a separate thread.

Provider clients keep connections that belong to their loop, so a new loop for each call would break them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

log = logging.getLogger(__name__)
T = TypeVar("T")


class LoopThread:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="model-calls", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_ending.is_set():
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt):  # raised by a task: without the loop, model calls would never end
                log.exception("a model call has interrupted the event loop")

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start `work` on the loop. Cancelling the future cancels the work."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def ask_to_stop(self) -> None:
        """Stop the loop after its current callback. Does nothing if it is closed."""
        self._is_ending.set()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)

    def close(self, until: float) -> None:
        """Stop, and wait for the thread until a time of `time.monotonic()`."""
        self.ask_to_stop()
        self._thread.join(max(until - time.monotonic(), 0))
        if not self._thread.is_alive():
            self._loop.close()
