"""Publishes rings over Redis, for the other processes of the site. Imported only where there is a Redis: its client
takes a quarter of a second to load, which every command would pay."""

from __future__ import annotations

import atexit
import logging
import os
import threading

import redis

from timeline.notify import PREFIX

log = logging.getLogger(__name__)
#: How long a process that ends waits until Redis has what it rang: a command may end right after its commit.
LAST_WORDS_S = 1.5


class Publisher:
    """Publishes from its own thread, so that a slow Redis never slows a commit; of a log only the newest seq."""

    def __init__(self, url: str) -> None:
        self.pid, self.url = os.getpid(), url
        self._pending: dict[tuple[str, str], str] = {}
        self._publishing = False
        self._wake = threading.Condition()
        # A Redis that hangs must not stop the thread for good; what it missed, readers find by looking.
        self._redis = redis.Redis.from_url(url, socket_timeout=1, socket_connect_timeout=1)
        threading.Thread(target=self._run, name="doorbell", daemon=True).start()
        atexit.register(self.flush)

    def put(self, key: tuple[str, str], value: str) -> None:
        """Of the values under one key the newest stays: the higher seq, whichever thread comes first."""
        with self._wake:
            self._pending[key] = max(self._pending.get(key, ""), value, key=lambda seq: (len(seq), seq))
            self._wake.notify_all()

    def flush(self, within_s: float = LAST_WORDS_S) -> None:
        """Wait until everything that was put is published, or was tried; the thread dies with the process."""
        if self.pid != os.getpid():
            return  # a forked child has inherited the call, and not the thread
        with self._wake:
            self._wake.wait_for(lambda: not self._pending and not self._publishing, timeout=within_s)

    def _run(self) -> None:
        down = False
        while True:
            with self._wake:
                self._publishing = False
                self._wake.notify_all()
                self._wake.wait_for(lambda: self._pending)
                batch, self._pending, self._publishing = self._pending, {}, True
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
