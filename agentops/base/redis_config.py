"""The Redis settings: Celery's broker and Django's cache."""

from __future__ import annotations

import json
from typing import Any

#: The default serializer unpickles stored values, and so executes code.
SERIALIZER = "agentops.base.redis_config.JsonSerializer"


def cache_config(redis_url: str) -> dict[str, Any]:
    """Return the entry of CACHES. The cache stores the progress of imports."""
    if not redis_url:
        return {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "OPTIONS": {"MAX_ENTRIES": 10_000}}
    return {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": redis_url,
        "KEY_PREFIX": "agentops",
        # Maximum wait of a page for a Redis that hangs.
        "OPTIONS": {"socket_timeout": 1, "socket_connect_timeout": 1, "serializer": SERIALIZER},
    }


def broker_options(redis_url: str) -> dict[str, Any]:
    """Return the options of Celery's transport."""
    if not redis_url:
        return {}
    # max_retries: publishing to an unavailable broker fails at once, without kombu's own six seconds of retries.
    # ack_emulation: with it, Redis would keep each message until a worker acknowledges it, and a worker that does so
    # after losing its connection would end with an AttributeError in kombu.
    return {
        "socket_timeout": 5,
        "socket_connect_timeout": 1,
        "socket_keepalive": True,
        "max_retries": 0,
        "ack_emulation": False,
    }


class JsonSerializer:
    """Replaces Django's serializer, which unpickles values: a client with access to Redis could execute code here."""

    def dumps(self, value: Any) -> int | str:
        """Return an integer unchanged, so that Redis can count with it, and anything else as JSON."""
        return value if type(value) is int else json.dumps(value)

    def loads(self, data: bytes) -> Any:
        """Return a stored value, or None if `dumps` did not write it."""
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            return None
