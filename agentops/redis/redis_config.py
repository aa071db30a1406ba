"""The settings of what uses Redis: Celery's broker and Django's cache."""

from __future__ import annotations

from typing import Any

#: The default serializer unpickles what it reads, and so runs code.
SERIALIZER = "agentops.redis.cache_values.JsonSerializer"


def cache_config(redis_url: str) -> dict[str, Any]:
    """Return the entry of CACHES. The cache holds how far imports have come."""
    if not redis_url:
        return {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "OPTIONS": {"MAX_ENTRIES": 10_000}}
    return {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": redis_url,
        "KEY_PREFIX": "agentops",
        # A page waits no longer than this for a Redis that hangs.
        "OPTIONS": {"socket_timeout": 1, "socket_connect_timeout": 1, "serializer": SERIALIZER},
    }


def broker_options(redis_url: str) -> dict[str, Any]:
    """Return the options of Celery's transport."""
    if not redis_url:
        return {}
    # max_retries: a publish to a broker that is down fails at once, not after kombu's own six seconds of trying.
    # ack_emulation: with it, Redis would keep each message until a worker acknowledges it, and a worker that does so
    # after its connection was lost would end with an AttributeError in kombu.
    return {
        "socket_timeout": 5,
        "socket_connect_timeout": 1,
        "socket_keepalive": True,
        "max_retries": 0,
        "ack_emulation": False,
    }
