"""How often something may be tried: counted in Django's cache, where all processes see it.

May import Django, redis and this package.
"""

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
        # Hashed: the parts are of any length and script, and the cache need not know them.
        digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
        return f"throttle:{self.name}:{digest}"
