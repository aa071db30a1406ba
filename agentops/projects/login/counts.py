"""Counters of attempts, of this process alone."""

from __future__ import annotations

import threading
import time
from typing import Protocol

#: Counters of a process. The oldest are dropped, so there is room for more names than anyone can try in the time.
MOST = 100_000


class AttemptCounts(Protocol):
    """Counters that end by themselves, by their keys."""

    def add(self, key: str, seconds: int, amount: int = 1) -> int:
        """Add to a counter, which ends `seconds` after it was begun. Return its value."""

    def value(self, key: str) -> int:
        """Return the value of a counter; 0 without one."""

    def left_s(self, key: str) -> float:
        """Return the seconds until a counter ends."""

    def clear(self, key: str) -> None:
        """Delete a counter."""


class ProcessCounts:
    """The counters of this process."""

    def __init__(self) -> None:
        #: Key → value, and when the counter ends. The one that was begun first comes first.
        self._counts: dict[str, tuple[int, float]] = {}
        self._lock = threading.Lock()

    def add(self, key: str, seconds: int, amount: int = 1) -> int:
        now = time.monotonic()
        with self._lock:
            value, ends_at = self._counts.get(key, (0, 0.0))
            if ends_at <= now:
                self._counts.pop(key, None)
                value, ends_at = 0, now + seconds
            value = max(0, value + amount)
            self._counts[key] = value, ends_at
            if len(self._counts) > MOST:
                del self._counts[next(iter(self._counts))]
            return value

    def value(self, key: str) -> int:
        value, ends_at = self._counts.get(key, (0, 0.0))
        return value if ends_at > time.monotonic() else 0

    def left_s(self, key: str) -> float:
        return self._counts.get(key, (0, 0.0))[1] - time.monotonic()

    def clear(self, key: str) -> None:
        with self._lock:
            self._counts.pop(key, None)

    def clear_all(self) -> None:
        """Delete all counters."""
        with self._lock:
            self._counts.clear()


OWN = ProcessCounts()
