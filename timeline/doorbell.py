"""The doorbell: tells listeners that something has changed. Only a hint: what is true stands in the tables.

May import Django and redis; rung after the commit, never inside a transaction. A channel is one log (its value:
the newest seq) or one project (its value: the id of a run that was created or changed its status).
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
#: Called with a channel's name and its value, on the thread that committed.
Listener = Callable[[str, str], None]
#: Before a channel's name in Redis, which others may use too.
PREFIX = "agentops:"

_listeners: list[Listener] = []


def log_channel(log_id: UUID) -> str:
    return f"log:{log_id}"


def project_channel(project_id: UUID) -> str:
    return f"project:{project_id}"


def subscribe(listener: Listener) -> Callable[[], None]:
    """Call `listener(channel, value)` in this process for each ring; returns the way to stop."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


def ring(log_id: UUID, seq: int) -> None:
    """A log has grown to `seq`."""
    _tell(log_channel(log_id), str(seq), pending=(log_channel(log_id), ""))


def ring_project(project_id: UUID, run_id: UUID) -> None:
    """A run of a project was created, or has another status: lists of runs want to know."""
    channel = project_channel(project_id)
    _tell(channel, str(run_id), pending=(channel, str(run_id)))


def _tell(channel: str, value: str, pending: tuple[str, str]) -> None:
    """This process's listeners at once, other processes by Redis from a thread of its own."""
    for listener in tuple(_listeners):
        listener(channel, value)
    if settings.REDIS_URL:
        _publisher().put(pending, value)


class Publisher:
    """Publishes from its own thread, so that a slow Redis never slows a commit; of a log only the newest seq."""

    def __init__(self, url: str) -> None:
        self.pid = os.getpid()
        self._pending: dict[tuple[str, str], str] = {}
        self._wake = threading.Condition()
        # A Redis that hangs must not stop the thread for good; what it missed, readers find by looking.
        self._redis = redis.Redis.from_url(url, socket_timeout=1, socket_connect_timeout=1)
        threading.Thread(target=self._run, name="doorbell", daemon=True).start()

    def put(self, key: tuple[str, str], value: str) -> None:
        """Of the values under one key the newest stays: the higher seq, whichever thread comes first."""
        with self._wake:
            self._pending[key] = max(self._pending.get(key, ""), value, key=lambda seq: (len(seq), seq))
            self._wake.notify()

    def _run(self) -> None:
        down = False
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._pending)
                batch, self._pending = self._pending, {}
            try:
                with self._redis.pipeline(transaction=False) as pipe:
                    for (channel, _), value in batch.items():
                        pipe.publish(PREFIX + channel, value)
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
