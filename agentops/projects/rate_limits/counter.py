"""Counts requests in windows of a minute, each of which begins with its holder's first request.

With Redis all processes count together, without it each by itself.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any

from limits import RateLimitItem, RateLimitItemPerMinute
from limits.errors import StorageError
from limits.storage import MemoryStorage, Storage, storage_from_string
from limits.strategies import FixedWindowRateLimiter

from agentops.projects.rate_limits.limits import Standing

log = logging.getLogger(__name__)
PREFIX = "agentops:rate"
#: A process tells the store of this part of a limit at a time, so that most requests cost next to nothing. All
#: processes together let through so much more than the limit at most, once for each thread that is about to tell it;
#: of small limits nothing more.
BATCH = 0.01
#: It also asks again after this long.
FRESH_S = 1.0
#: After Redis has failed, each process counts by itself for this long.
DOWN_S = 5.0
TIMEOUT_S = 0.3
#: Windows that a process remembers: when there are more, those that are over are forgotten.
MANY = 10_000


@dataclass(slots=True)
class _Window:
    """What this process knows of a holder's window."""

    remaining: int = 0
    ends_at: float = 0.0
    asked_at: float = 0.0
    #: Requests that the store was not told of yet.
    pending: int = 0
    #: Those that it is being told of, by some other thread.
    telling: int = 0


class Counter:
    """Counts some requests at a time: in Redis, and while that does not answer, or without it, in this process."""

    def __init__(self, url: str = "") -> None:
        self._limiter = FixedWindowRateLimiter(_store(url))
        self._alone = Counter() if url else self
        self._down_until = 0.0
        self._windows: dict[str, _Window] = {}
        self._tidied_at = 0.0
        self._lock = threading.Lock()

    def take(self, limit: int, holder: str) -> Standing:
        if time.time() < self._down_until:
            return self._alone.take(limit, holder)
        item, window = _per_minute(limit), self._window(holder)
        with self._lock:
            standing = _known(item, window)
            if standing is not None:
                return standing
            told, window.pending = window.pending, 0
            window.telling += told
        try:
            standing = _counted(self._limiter, item, holder, told)
        except StorageError as error:
            log.warning("rates: Redis does not answer (%s); each process counts alone", type(error.__cause__).__name__)
            self._down_until = time.time() + DOWN_S
            standing = None
        with self._lock:
            window.telling -= told
            if standing is not None:
                now = time.time()
                # Of two answers that overtake each other the later one counts, which is the lower one.
                earlier = window.remaining if now < window.ends_at else standing.remaining
                window.remaining = min(earlier, standing.remaining)
                window.ends_at, window.asked_at = now + standing.reset_s, now
        return self._alone.take(limit, holder) if standing is None else standing

    def _window(self, holder: str) -> _Window:
        now = time.time()
        with self._lock:
            if len(self._windows) > MANY and now > self._tidied_at + FRESH_S:
                self._windows = {name: one for name, one in self._windows.items() if one.ends_at > now}
                self._tidied_at = now
            return self._windows.setdefault(holder, _Window())


def _known(item: RateLimitItem, window: _Window) -> Standing | None:
    """Note a request; where its holder stands, as far as that is known here. None: the store has to be asked."""
    now = time.time()
    # What a window that is over has not told is of no more interest.
    window.pending = window.pending + 1 if now < window.ends_at else 1
    left = window.remaining - window.telling - window.pending
    fresh = now < min(window.ends_at, window.asked_at + FRESH_S)
    if fresh and window.pending <= int(item.amount * BATCH) < left:
        return Standing(item.amount, left, ceil(window.ends_at - now))
    return None


def _store(url: str) -> Storage:
    if not url:
        return MemoryStorage()
    options: dict[str, Any] = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}
    found = storage_from_string(url, wrap_exceptions=True, key_prefix=PREFIX, **options)
    assert isinstance(found, Storage)  # the other kind is asynchronous
    return found


def _counted(limiter: FixedWindowRateLimiter, item: RateLimitItem, holder: str, requests: int) -> Standing:
    allowed = limiter.hit(item, holder, cost=requests)
    ends_at, remaining = limiter.get_window_stats(item, holder)
    return Standing(item.amount, remaining, max(1, ceil(ends_at - time.time())), exceeded=not allowed)


@lru_cache(maxsize=64)
def _per_minute(limit: int) -> RateLimitItem:
    return RateLimitItemPerMinute(limit)
