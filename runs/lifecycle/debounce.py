"""Send requests for work from a thread, and merge many requests for the same work."""

from __future__ import annotations

import bisect
import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

#: Seconds between two messages with the same name, once the first was sent.
INTERVAL_S = 1.0
#: Seconds that an ending process waits until its messages are sent. A command may end right after its commit.
FLUSH_S = 1.5


class Debounce:
    """Calls `send(name)` for requests, about once per INTERVAL_S for each name, and at least once after every request.

    The first request is sent at once, later ones at the end of the interval. The call for a request begins after the
    request, so the receiver sees everything committed before it. `send` may be slow, and must not raise.
    """

    def __init__(self, send: Callable[[str], None]) -> None:
        self._send = send
        #: The times of planned calls, in order, and of the last call. Monotonic seconds.
        self._planned: dict[str, list[float]] = {}
        self._called: dict[str, float] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        # A child has no thread that would release the locks which `send` holds at the fork, such as those of the pool
        # of connections to the broker. So this process forks only between two calls.
        self._sending = lock = threading.Lock()
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)

    def request(self, name: str, countdown_s: float = 0.0) -> None:
        """Schedule a call of `send(name)` in `countdown_s` seconds, or up to INTERVAL_S later."""
        with self._changed:
            soonest = time.monotonic() + countdown_s
            planned = self._planned.setdefault(name, [])
            if any(soonest <= at <= soonest + INTERVAL_S for at in planned):
                return
            before = max((at for at in planned if at < soonest), default=self._called.get(name, -math.inf))
            bisect.insort(planned, max(soonest, before + INTERVAL_S))
            self._wake_thread()

    def flush(self, within_s: float = FLUSH_S) -> None:
        """Make all planned calls at once, and wait for them at most `within_s` seconds."""
        with self._changed:
            for name, times in self._planned.items():
                self._planned[name] = [0.0] if times else []
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._thread is None, timeout=within_s)

    def _wake_thread(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="requests", daemon=True)
            # If no thread can be started, the clock finds the work; the next request tries again.
            with suppress(RuntimeError):
                thread.start()
                self._thread = thread
        self._changed.notify_all()

    def _run(self) -> None:
        """Make the due calls, until none is planned."""
        while True:
            with self._changed:
                due = self._take_due()
                while due is None:
                    if (wait_s := self._wait_s()) is None:
                        self._thread = None
                        self._changed.notify_all()
                        return
                    self._changed.wait(wait_s)
                    due = self._take_due()
            with self._sending:
                self._send(due)

    def _take_due(self) -> str | None:
        now = time.monotonic()
        for name, times in self._planned.items():
            if times and times[0] <= now:
                del times[0]
                self._called[name] = now
                return name
        return None

    def _wait_s(self) -> float | None:
        """Return the seconds until the next call; None if no call is planned."""
        soonest = min((times[0] for times in self._planned.values() if times), default=None)
        return None if soonest is None else max(soonest - time.monotonic(), 0.0)
