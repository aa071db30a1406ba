"""The doorbell: tells listeners that a log has grown. Only a hint: what is true stands in the table.

May import Django and redis; rung by timeline.log after the commit, never inside a transaction.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from uuid import UUID

import redis
from django.conf import settings

log = logging.getLogger(__name__)
Listener = Callable[[UUID, int], None]
CHANNEL = "agentops:log:{log_id}"

_listeners: list[Listener] = []


def subscribe(listener: Listener) -> Callable[[], None]:
    """Call `listener(log_id, seq)` in this process after each append; returns the way to stop."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


def ring(log_id: UUID, seq: int) -> None:
    """Tell this process's listeners at once, and other processes by Redis from a thread of its own."""
    for listener in tuple(_listeners):
        listener(log_id, seq)
    if settings.REDIS_URL:
        _publisher().put(log_id, seq)


class Publisher:
    """Publishes the newest seq per log from its own thread, so that a slow Redis never slows a commit."""

    def __init__(self, url: str) -> None:
        self.pid = os.getpid()
        self._pending: dict[UUID, int] = {}
        self._wake = threading.Condition()
        # A Redis that hangs must not stop the thread for good; what it missed, readers find by looking.
        self._redis = redis.Redis.from_url(url, socket_timeout=1, socket_connect_timeout=1)
        threading.Thread(target=self._run, name="doorbell", daemon=True).start()

    def put(self, log_id: UUID, seq: int) -> None:
        with self._wake:
            self._pending[log_id] = max(seq, self._pending.get(log_id, 0))
            self._wake.notify()

    def _run(self) -> None:
        down = False
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._pending)
                batch, self._pending = self._pending, {}
            try:
                with self._redis.pipeline(transaction=False) as pipe:
                    for log_id, seq in batch.items():
                        pipe.publish(CHANNEL.format(log_id=log_id), seq)
                    pipe.execute()
                down = False
            except redis.RedisError as error:
                if not down:
                    log.warning(
                        "doorbell: Redis does not answer (%s); readers poll until it does", type(error).__name__
                    )
                down = True


_current: Publisher | None = None
_lock = threading.Lock()


def _publisher() -> Publisher:
    """This process's publisher; a forked child has no thread of its parent's and makes its own."""
    global _current
    with _lock:
        if _current is None or _current.pid != os.getpid():
            _current = Publisher(settings.REDIS_URL)
        return _current
