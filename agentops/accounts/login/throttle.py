"""Limits on attempts, shared by all processes if they use the same Redis."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from math import ceil
from typing import Protocol

from django.conf import settings

from agentops.base.refusals import Refusal

#: Maximum number of counters in a process. The oldest are dropped, so this exceeds the number of names anyone can try
#: in the time.
MAX_COUNTERS = 100_000


class AttemptCounts(Protocol):
    """Counters by key, which expire automatically."""

    def add(self, key: str, seconds: int, amount: int = 1) -> int:
        """Add to a counter, which expires `seconds` after its first use. Return its value."""

    def value(self, key: str) -> int:
        """Return the value of a counter; 0 without one."""

    def left_s(self, key: str) -> float:
        """Return the seconds until a counter expires."""

    def clear(self, key: str) -> None:
        """Delete a counter."""


class ProcessCounts:
    """The counters of this process."""

    def __init__(self) -> None:
        #: Key → value, and when the counter expires. The oldest counter comes first.
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
            if len(self._counts) > MAX_COUNTERS:
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


# --- Throttles ---

#: Multiple of the limit at which a process's own counters refuse: a success resets the shared counters and those in the
#: same process, but not the counters of other processes.
OWN_SHARE = 2


class TooManyAttempts(Refusal):
    """An attempt was refused without checking anything. Has the time of the next allowed attempt."""

    code = "too_many_attempts"
    status = 429

    def __init__(self, wait_s: int) -> None:
        super().__init__(f"too many attempts: try again in {wait_s} seconds")
        self.headers = {"Retry-After": str(wait_s)}


class Throttle:
    """At most `limit` attempts within `seconds` of the first one, for each combination of parts."""

    def __init__(self, name: str, *, limit: int, seconds: int) -> None:
        self.name = name
        self.limit = limit
        self.seconds = seconds

    def spent(self, *parts: str) -> bool:
        """Count this attempt and return whether it exceeds the limit."""
        return self.wait_s(*parts) > 0

    def wait_s(self, *parts: str) -> int:
        """Count this attempt. Return 0, or the seconds until attempts are allowed again if it exceeds the limit.

        Counted before the result is known, so that concurrent attempts cannot exceed the limit. If Redis is not
        available, attempts are still allowed.
        """
        key = _key(self.name, parts)
        for counts, share in _counters():
            if counts.add(key, self.seconds) > self.limit * share and (wait := _left_s(counts, key, self.seconds)):
                return wait
        return 0

    def forget(self, *parts: str) -> None:
        """Reset the counter after a success."""
        for counts, _ in _counters():
            counts.clear(_key(self.name, parts))

    def forget_one(self, *parts: str) -> None:
        """Subtract the last counted attempt."""
        _subtract(_key(self.name, parts), self.seconds)


class Slowdown:
    """Free attempts, then single attempts with growing pauses, up to `longest_pause` seconds.

    For counters of a name over all addresses, where attackers could use a fixed limit to lock the owner out.
    """

    def __init__(self, name: str, *, free: int, seconds: int, longest_pause: int) -> None:
        self.name = name
        self.free = free
        self.seconds = seconds
        self.longest_pause = longest_pause

    def wait_s(self, *parts: str) -> int:
        """Count this attempt. Return 0, or within a pause its remaining seconds; such an attempt is not counted."""
        key = _key(self.name, parts)
        for counts, share in _counters():
            beyond = counts.value(key) - self.free * share
            if beyond >= 0:
                pause_s = self.pause(beyond)
                if counts.add(f"{key}:pause", pause_s) > 1 and (
                    wait := _left_s(counts, f"{key}:pause", self.longest_pause)
                ):
                    return wait
            if counts.add(key, self.seconds) > self.free * share and beyond < 0:
                counts.add(key, self.seconds, -1)  # others took the last free ones at the same time
                return 1
        return 0

    def pause(self, beyond: int) -> int:
        """Return the pause in seconds after attempt `free + beyond`: 1, 2, 4 and so on."""
        return min(1 << min(beyond, 30), self.longest_pause)

    def forget_one(self, *parts: str) -> None:
        """Subtract the last counted attempt after a success."""
        _subtract(_key(self.name, parts), self.seconds)


def _counters() -> Iterator[tuple[AttemptCounts, int]]:
    """Yield the counters, and the factor by which each may exceed the limit."""
    if settings.REDIS_URL:
        # Imported here because the library takes 0.1 seconds to load, and commands do not need it.
        from agentops.accounts.login.shared_counts import shared_counts

        yield shared_counts(settings.REDIS_URL), 1
        yield OWN, OWN_SHARE
    else:
        yield OWN, 1


def _left_s(counts: AttemptCounts, key: str, longest: int) -> int:
    """Return the seconds until a counter expires. Delete a counter with an excessive time: it was written by others."""
    left = counts.left_s(key)
    if 0 < left <= longest:
        return ceil(left)
    counts.clear(key)
    return 0


def _subtract(key: str, seconds: int) -> None:
    for counts, _ in _counters():
        if counts.value(key) > 0:
            counts.add(key, seconds, -1)


def _key(name: str, parts: tuple[str, ...]) -> str:
    # Hashed: the parts can be long, and are personal data.
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
    return f"throttle:{name}:{digest}"
