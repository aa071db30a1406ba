"""Counters of attempts, which survive between tests."""

from __future__ import annotations

import redis
from django.conf import settings

from agentops.accounts.login.throttle import OWN


def forget_attempts() -> None:
    """Reset all counters of attempts."""
    OWN.clear_all()
    if settings.REDIS_URL:
        with redis.Redis.from_url(settings.REDIS_URL) as client:
            client.flushdb()
