"""Publishes notifications over Redis to other processes.

Imported only if REDIS_URL is set, because loading the client takes 0.25 s, which would delay every command.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading

import redis

log = logging.getLogger(__name__)
#: How long an ending process waits until its notifications are published. A command may end right after its commit.
FLUSH_TIMEOUT_S = 1.5


class Publisher:
    """Publishes from its own thread, so that a slow Redis does not delay commits."""

    def __init__(self, url: str) -> None:
        self.pid, self.url = os.getpid(), url
        self._pending: dict[tuple[str, str], str] = {}
        self._publishing = False
        self._wake = threading.Condition()
        # With timeouts, so that a hanging Redis does not block the thread. Readers poll for unpublished changes.
        self._redis = redis.Redis.from_url(url, socket_timeout=1, socket_connect_timeout=1)
        threading.Thread(target=self._run, name="redis-publisher", daemon=True).start()
        atexit.register(self.flush)

    def publish_later(self, key: tuple[str, str], value: str) -> None:
        """Queue a value for the channel `key[0]`. Of the waiting values with the same key, the highest is published."""
        with self._wake:
            self._pending[key] = max(self._pending.get(key, ""), value, key=lambda seq: (len(seq), seq))
            self._wake.notify_all()

    def flush(self, within_s: float = FLUSH_TIMEOUT_S) -> None:
        """Wait at most `within_s` seconds until all queued values were published or failed."""
        if self.pid != os.getpid():
            return  # a forked child inherits the atexit call, but not the thread
        with self._wake:
            self._wake.wait_for(lambda: not self._pending and not self._publishing, timeout=within_s)

    def _run(self) -> None:
        was_down = False
        while True:
            with self._wake:
                self._publishing = False
                self._wake.notify_all()
                self._wake.wait_for(lambda: self._pending)
                batch, self._pending, self._publishing = self._pending, {}, True
            try:
                with self._redis.pipeline(transaction=False) as pipe:
                    for (channel, _), value in batch.items():
                        pipe.publish(channel, value)
                    pipe.execute()
                was_down = False
            except Exception as error:  # if this thread ended, queued values would accumulate
                if not was_down:
                    log.warning(
                        "REDIS_URL: Redis does not answer (%s); streams poll the database until it does",
                        type(error).__name__,
                    )
                was_down = True
