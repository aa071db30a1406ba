"""Counters of attempts: those of this process, and with Redis those that all processes share.

Redis is not trusted: who can write to it can delete a counter, or raise it. So each process also counts by itself.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import lru_cache
from typing import Protocol

from limits.errors import StorageError

from agentops.projects.rate_limits.counter import DOWN_S, store_of

log = logging.getLogger(__name__)
#: Counters of a process. The oldest are dropped, so there is room for more names than anyone can try in the time.
MOST = 100_000


class Counts(Protocol):
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


class SharedCounts:
    """The counters in Redis. While it cannot be used, nothing is counted there."""

    def __init__(self, url: str) -> None:
        self._store = store_of(url)
        self._down_until = 0.0

    def add(self, key: str, seconds: int, amount: int = 1) -> int:
        if self._is_down():
            return 0
        try:
            return self._store.incr(key, seconds, amount)
        except StorageError as error:
            return self._note(error)

    def value(self, key: str) -> int:
        if self._is_down():
            return 0
        try:
            return self._store.get(key)
        except (StorageError, ValueError) as error:
            return self._note(error)

    def left_s(self, key: str) -> float:
        try:
            return self._store.get_expiry(key) - time.time()
        except StorageError as error:
            return self._note(error)

    def clear(self, key: str) -> None:
        if self._is_down():
            return
        try:
            self._store.clear(key)
        except StorageError as error:
            self._note(error)

    def _is_down(self) -> bool:
        return time.monotonic() < self._down_until

    def _note(self, error: Exception) -> int:
        """Log why nothing was counted. Without an answer, leave Redis alone for a while: each attempt would wait."""
        cause = error.__cause__ or error
        log.warning("attempts: Redis does not count (%s); this process counts alone", type(cause).__name__)
        if isinstance(cause, (OSError, TimeoutError)) or "Connection" in type(cause).__name__:
            self._down_until = time.monotonic() + DOWN_S
        return 0


OWN = ProcessCounts()


@lru_cache(maxsize=8)
def shared_counts(url: str) -> SharedCounts:
    """Return the counters in the Redis at `url`."""
    return SharedCounts(url)
