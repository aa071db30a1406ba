"""Counters of attempts in Redis, which all processes share.

Redis is not trusted: a client with write access can delete or raise a counter. So each process also counts separately.
"""

from __future__ import annotations

import logging
import time
from functools import lru_cache

from limits.errors import StorageError

from agentops.accounts.rate_counter import DOWN_S, store_of

log = logging.getLogger(__name__)


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
            return self._store.get_expiry(key) - time.time()  # noqa: TID251 - the clock of the library
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
        """Log why an attempt was not counted. After a timeout, skip Redis for a while: each attempt would wait."""
        cause = error.__cause__ or error
        log.warning("attempts: Redis does not count (%s); this process counts alone", type(cause).__name__)
        if isinstance(cause, (OSError, TimeoutError)) or "Connection" in type(cause).__name__:
            self._down_until = time.monotonic() + DOWN_S
        return 0


@lru_cache(maxsize=8)
def shared_counts(url: str) -> SharedCounts:
    """Return the counters in the Redis at `url`."""
    return SharedCounts(url)
