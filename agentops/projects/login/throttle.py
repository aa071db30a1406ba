"""How often something may be tried: counted in Django's cache, where all processes see it."""

from __future__ import annotations

import hashlib
import logging

import redis
from django.core.cache import cache

log = logging.getLogger(__name__)


class Throttle:
    """At most `limit` tries within `seconds` of the first one, for each combination of parts."""

    def __init__(self, name: str, *, limit: int, seconds: int) -> None:
        self.name = name
        self.limit = limit
        self.seconds = seconds

    def spent(self, *parts: str) -> bool:
        """Count this try; whether it is one too many.

        Counted before the outcome is known: of many tries at once no more than `limit` get through. A cache that
        does not answer lets everyone pass: it must not be a way to lock people out.
        """
        key = self._key(parts)
        try:
            cache.add(key, 0, self.seconds)
            return cache.incr(key) > self.limit
        except ValueError:
            return False  # the time was up between the two calls: a first try again
        except (redis.RedisError, OSError) as error:
            log.warning("throttle %s: the cache does not answer (%s)", self.name, type(error).__name__)
            return False

    def forget(self, *parts: str) -> None:
        """It went well: the next try is a first one."""
        try:
            cache.delete(self._key(parts))
        except (redis.RedisError, OSError) as error:
            log.warning("throttle %s: the cache does not answer (%s)", self.name, type(error).__name__)

    def _key(self, parts: tuple[str, ...]) -> str:
        return _key(self.name, parts)


class Slowdown:
    """Free tries, then one at a time with growing pauses: nobody is shut out for longer than the longest pause.

    For what everybody shares, where a plain limit would let strangers lock its owner out.
    """

    def __init__(self, name: str, *, free: int, seconds: int, longest_pause: int) -> None:
        self.name = name
        self.free = free
        self.seconds = seconds
        self.longest_pause = longest_pause

    def spent(self, *parts: str) -> bool:
        """Count this try; return whether it comes within a pause. Such a try is not counted and prolongs nothing."""
        key = _key(self.name, parts)
        try:
            cache.add(key, 0, self.seconds)
            beyond = int(cache.get(key) or 0) - self.free
            if beyond >= 0:
                if not cache.add(f"{key}:pause", 1, self.pause(beyond)):
                    return True
                cache.incr(key)
            elif cache.incr(key) > self.free:
                cache.decr(key)  # others took the last free ones at the same time
                return True
        except ValueError:
            pass  # the time was up between the two calls: a first try again
        except (redis.RedisError, OSError) as error:
            log.warning("throttle %s: the cache does not answer (%s)", self.name, type(error).__name__)
        return False

    def pause(self, beyond: int) -> int:
        """Seconds after the try number `free + beyond`: 1, 2, 4 and so on."""
        return min(1 << min(beyond, 30), self.longest_pause)

    def forget_one(self, *parts: str) -> None:
        """The try that was counted last was none of those that are to be slowed down."""
        try:
            cache.decr(_key(self.name, parts))
        except ValueError:
            pass  # its time was up meanwhile
        except (redis.RedisError, OSError) as error:
            log.warning("throttle %s: the cache does not answer (%s)", self.name, type(error).__name__)


def _key(name: str, parts: tuple[str, ...]) -> str:
    # Hashed: the parts are of any length and script, and the cache need not know them.
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
    return f"throttle:{name}:{digest}"
