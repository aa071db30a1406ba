"""Limits on attempts, counted in Django's cache, which all processes share."""

from __future__ import annotations

import hashlib
import logging

import redis
from django.core.cache import cache

log = logging.getLogger(__name__)


class Throttle:
    """At most `limit` attempts within `seconds` of the first one, for each combination of parts."""

    def __init__(self, name: str, *, limit: int, seconds: int) -> None:
        self.name = name
        self.limit = limit
        self.seconds = seconds

    def spent(self, *parts: str) -> bool:
        """Count this attempt and return whether it exceeds the limit.

        Counted before the result is known, so that concurrent attempts cannot exceed the limit. Returns False if the
        cache is not available, so that an outage does not lock users out.
        """
        key = self._key(parts)
        try:
            cache.add(key, 0, self.seconds)
            return _count(key, self.seconds) > self.limit
        except ValueError:
            return False  # the time was up between the two calls: a first try again
        except (redis.RedisError, OSError) as error:
            log.warning("throttle %s: the cache does not answer (%s)", self.name, type(error).__name__)
            return False

    def forget(self, *parts: str) -> None:
        """Reset the counter after a success."""
        try:
            cache.delete(self._key(parts))
        except (redis.RedisError, OSError) as error:
            log.warning("throttle %s: the cache does not answer (%s)", self.name, type(error).__name__)

    def _key(self, parts: tuple[str, ...]) -> str:
        return _key(self.name, parts)


class Slowdown:
    """Free attempts, then single attempts with growing pauses, up to `longest_pause` seconds.

    For shared counters, where a fixed limit would let attackers lock the owner out.
    """

    def __init__(self, name: str, *, free: int, seconds: int, longest_pause: int) -> None:
        self.name = name
        self.free = free
        self.seconds = seconds
        self.longest_pause = longest_pause

    def spent(self, *parts: str) -> bool:
        """Count this attempt and return whether it is within a pause. Such an attempt is not counted."""
        key = _key(self.name, parts)
        try:
            cache.add(key, 0, self.seconds)
            beyond = int(cache.get(key) or 0) - self.free
            if beyond >= 0:
                if not cache.add(f"{key}:pause", 1, self.pause(beyond)):
                    return True
                _count(key, self.seconds)
            elif _count(key, self.seconds) > self.free:
                cache.decr(key)  # others took the last free ones at the same time
                return True
        except ValueError:
            pass  # the time was up between the two calls: a first try again
        except (redis.RedisError, OSError) as error:
            log.warning("throttle %s: the cache does not answer (%s)", self.name, type(error).__name__)
        return False

    def pause(self, beyond: int) -> int:
        """Return the pause in seconds after attempt `free + beyond`: 1, 2, 4 and so on."""
        return min(1 << min(beyond, 30), self.longest_pause)

    def forget_one(self, *parts: str) -> None:
        """Subtract the last counted attempt after a success."""
        try:
            cache.decr(_key(self.name, parts))
        except ValueError:
            pass  # its time was up meanwhile
        except (redis.RedisError, OSError) as error:
            log.warning("throttle %s: the cache does not answer (%s)", self.name, type(error).__name__)


def _count(key: str, seconds: int) -> int:
    """Count an attempt and return their number. Raise ValueError if the time was up meanwhile."""
    count: int = cache.incr(key)
    if count == 1:
        # Django asks Redis whether the key exists, and then increments it. If it was deleted between the two, by a
        # success or by its age, it is created anew: without an end, it would lock the user out for good.
        cache.touch(key, seconds)
    return count


def _key(name: str, parts: tuple[str, ...]) -> str:
    # Hashed: the parts can be long, and are personal data.
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
    return f"throttle:{name}:{digest}"
