"""Counts requests for rate limits, in windows of a minute. A window starts with the first request of a holder.

A holder is an API key, a user, an address or a run. Requests above the limit are not counted. With Redis, all processes
share the counts; without it, each process counts separately.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any

from limits import RateLimitItem, RateLimitItemPerMinute
from limits.errors import StorageError
from limits.storage import MemoryStorage, Storage, storage_from_string
from limits.strategies import FixedWindowRateLimiter

from agentops.base.database_clock import clock

log = logging.getLogger(__name__)
PREFIX = "agentops:rate"
#: A process reports requests to the store in batches of this fraction of the limit. So the limit can be exceeded by a
#: batch per thread. Batches of small limits have one request, so that these limits are exact.
BATCH = 0.01
WINDOW_S = 60
#: A process allows this multiple of the limit in a minute. A minute of the process can overlap two shared windows.
OWN_SHARE = 2
#: Seconds for which the state of the store is assumed to be known.
FRESH_S = 1.0
#: Seconds for which each process counts separately after a failure of Redis.
DOWN_S = 5.0
#: Seconds to wait for Redis.
TIMEOUT_S = 0.3
#: If there are more windows in memory, expired ones are removed.
MAX_WINDOWS = 10_000


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a rate limit after a request."""

    limit: int
    #: Remaining requests in this window.
    remaining: int
    #: Seconds until the window ends.
    reset_s: int
    #: Whether this request exceeds the limit.
    exceeded: bool = False


@dataclass(slots=True)
class _Window:
    """What this process knows about the window of a holder. Times are by `clock`."""

    #: The state of the store at `queried_at`.
    remaining: int = 0
    ends_at: float = 0.0
    queried_at: float = 0.0
    #: Requests that were not reported to the store yet.
    pending: int = 0
    #: Requests that threads are reporting now.
    reporting: int = 0
    #: Requests in the current minute of this process.
    own: int = 0
    #: The end of this minute.
    own_ends_at: float = 0.0


class Counter:
    """Counts requests in Redis, in batches; without Redis, or while it is not available, in this process."""

    def __init__(self, url: str = "") -> None:
        self._limiter = FixedWindowRateLimiter(store_of(url) if url else MemoryStorage())
        # Calls of MemoryStorage must not overlap: it sometimes starts a timer twice, which raises RuntimeError.
        self._storage_lock: AbstractContextManager[Any] = nullcontext() if url else threading.Lock()
        #: The counter of this process alone, used while Redis is not available.
        self._alone = Counter() if url else self
        self._down_until = 0.0
        self._windows: dict[str, _Window] = {}
        self._tidied_at = 0.0
        self._lock = threading.Lock()

    def take(self, limit: int, holder: str, cost: int = 1) -> Standing:
        """Count a request, or several (`cost`), of a holder, and return the holder's standing."""
        if clock() < self._down_until:
            return self._alone.take(limit, holder, cost)
        item, window = _per_minute(limit), self._window(holder)
        with self._lock:
            standing = None if self._alone is self else _count_own(limit, window, cost)
            standing = standing or _count_locally(item, window, cost)
            if standing is not None:
                return standing
            batch, window.pending = window.pending, 0
            window.reporting += batch
        try:
            with self._storage_lock:
                standing = _count_in_store(self._limiter, item, holder, batch, cost)
        except StorageError as error:
            log.warning(
                "rate limits: Redis is not available (%s); each process counts separately",
                type(error.__cause__).__name__,
            )
            self._down_until = clock() + DOWN_S
            standing = None
        with self._lock:
            window.reporting -= batch
            if standing is not None:
                now = clock()
                # Answers to several threads may arrive out of order: the lowest of them is the newest.
                known = window.remaining if now < window.ends_at else standing.remaining
                window.remaining = min(known, standing.remaining)
                window.ends_at, window.queried_at = now + standing.reset_s, now
                if standing.exceeded:
                    window.own -= cost
        return self._alone.take(limit, holder, cost) if standing is None else standing

    def give_back(self, holder: str, cost: int, ends_at: float) -> None:
        """Uncount requests that were counted and then refused for another reason. The next report omits them.

        `ends_at`: the end of the window in which they were counted, by `clock`. After that time nothing is changed.
        """
        if clock() >= ends_at:
            return
        counter = self._alone if clock() < self._down_until else self
        window = counter._window(holder)
        with counter._lock:
            window.pending -= cost
            window.own -= cost

    def _window(self, holder: str) -> _Window:
        """Return the window of a holder, which is created if this process has none."""
        now = clock()
        with self._lock:
            if len(self._windows) > MAX_WINDOWS and now > self._tidied_at + FRESH_S:
                self._windows = {name: window for name, window in self._windows.items() if window.ends_at > now}
                self._tidied_at = now
            return self._windows.setdefault(holder, _Window())


def _count_own(limit: int, window: _Window, cost: int) -> Standing | None:
    """Count requests in this process. Return a standing only if there are far too many.

    This limits a client that can delete the counters in Redis.
    """
    now = clock()
    if now >= window.own_ends_at:
        window.own, window.own_ends_at = 0, now + WINDOW_S
    if window.own + cost <= limit * OWN_SHARE:
        window.own += cost
        return None
    return Standing(limit, 0, max(1, ceil(window.own_ends_at - now)), exceeded=True)


def _count_locally(item: RateLimitItem, window: _Window, cost: int) -> Standing | None:
    """Add requests to the pending ones. Return the standing if this process knows it; None if it must ask the store."""
    now = clock()
    # Pending requests of an expired window are dropped.
    window.pending = window.pending + cost if now < window.ends_at else cost
    remaining = window.remaining - window.reporting - window.pending
    is_fresh = now < min(window.ends_at, window.queried_at + FRESH_S)
    if is_fresh and window.pending <= int(item.amount * BATCH) < remaining:
        return Standing(item.amount, remaining, ceil(window.ends_at - now))
    return None


def store_of(url: str) -> Storage:
    """Return the counters in the Redis at `url`. Its methods raise StorageError if Redis fails."""
    options: dict[str, Any] = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}
    storage = storage_from_string(url, wrap_exceptions=True, key_prefix=PREFIX, **options)
    assert isinstance(storage, Storage)  # not the asynchronous kind
    return storage


def _count_in_store(
    limiter: FixedWindowRateLimiter, item: RateLimitItem, holder: str, requests: int, cost: int
) -> Standing:
    """Report the number `requests` to the store, and return the standing.

    The number ends with a request that was not decided yet, and that counts as `cost`. If the limit is exceeded, this
    request is refused, and only the others are counted.
    """
    try:
        allowed = limiter.test(item, holder, cost=requests)
    except ValueError as error:  # the stored value is not a number, so another program wrote it
        raise StorageError(error) from error
    if counted := requests if allowed else requests - cost:
        allowed = limiter.hit(item, holder, cost=counted) and allowed
    ends_at, remaining = limiter.get_window_stats(item, holder)
    left_s = ends_at - time.time()  # noqa: TID251 - the library gives its end by this clock
    if not allowed and not 0 < left_s <= WINDOW_S:
        # The window is longer than a minute, so another program wrote it.
        limiter.clear(item, holder)
    return Standing(item.amount, remaining, min(WINDOW_S, max(1, ceil(left_s))), exceeded=not allowed)


@lru_cache(maxsize=64)
def _per_minute(limit: int) -> RateLimitItem:
    return RateLimitItemPerMinute(limit)
