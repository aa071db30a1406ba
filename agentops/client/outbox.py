"""The bounded queue of the events that a process has recorded and not delivered yet."""

from __future__ import annotations

import threading
from collections import deque
from itertools import islice

#: Maximum events in a request, and their maximum bytes. A site accepts 500 events and 5 MiB.
BATCH_EVENTS, BATCH_BYTES = 500, 2 * 1024 * 1024
#: Number of places that are reserved for essential events (status events), without which the others have little value.
RESERVE = 1_000
#: The longest pause between attempts while a thread waits for delivery.
_URGENT_PAUSE_S = 0.25


class Outbox:
    """A queue of JSON texts."""

    def __init__(self, max_events: int, max_bytes: int) -> None:
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._texts: deque[str] = deque()
        self._bytes = 0
        #: Total number of events that were put, and that were removed.
        self.put_count = 0
        self.removed_count = 0
        self.is_closed = self._is_abandoned = False
        #: Number of calls of `hurry`.
        self._hurries = 0
        #: The `removed_count` that the latest call of `hurry` wants.
        self._wanted = 0
        # Re-entrant: a signal handler or a destructor may record while its thread puts an event.
        self._changed = threading.Condition(threading.RLock())

    def __len__(self) -> int:
        return len(self._texts)

    def put(self, text: str, *, is_essential: bool) -> bool:
        """Add an event, and return True; return False if the queue is full or closed. Does not wait."""
        with self._changed:
            if self.is_closed:
                return False
            max_events = self._max_events + (RESERVE if is_essential else 0)
            max_bytes = self._max_bytes + (RESERVE * 1024 if is_essential else 0)
            if len(self._texts) >= max_events or self._bytes + len(text) > max_bytes:
                return False
            self._texts.append(text)
            self._bytes += len(text)
            self.put_count += 1
            if len(self._texts) in (1, BATCH_EVENTS):
                self._changed.notify_all()
            return True

    def batch(self, limit: int = BATCH_EVENTS) -> list[str]:
        """Return the oldest events, up to the limit of a request. They stay in the queue until `remove`."""
        with self._changed:
            texts: list[str] = []
            size = 0
            for text in islice(self._texts, limit):
                size += len(text)
                if texts and size > BATCH_BYTES:
                    break
                texts.append(text)
            return texts

    def remove(self, count: int) -> None:
        """Remove the oldest events, which were delivered or finally refused."""
        with self._changed:
            for _ in range(count):
                self._bytes -= len(self._texts.popleft())
            self.removed_count += count
            self._changed.notify_all()

    def wait_for_batch(self, interval_s: float) -> None:
        """Wait for an event, and then at most `interval_s` for a full batch."""
        with self._changed:
            self._changed.wait_for(lambda: self._texts or self.is_closed)
            self._changed.wait_for(lambda: self._is_urgent or len(self._texts) >= BATCH_EVENTS, interval_s)

    def wait_before_retry(self, seconds: float) -> None:
        """Wait before the next attempt; only briefly if a thread waits for delivery."""
        with self._changed:
            hurries = self._hurries
            if self._is_urgent:
                seconds = min(seconds, _URGENT_PAUSE_S)
            self._changed.wait_for(lambda: self._hurries != hurries or self._is_abandoned, seconds)

    def hurry(self) -> int:
        """Request delivery of all queued events at once. Return the `removed_count` when they are all delivered."""
        with self._changed:
            self._hurries += 1
            self._wanted = self.put_count
            self._changed.notify_all()
            return self._wanted

    def wait_until_removed(self, count: int, timeout_s: float) -> bool:
        """Wait until `removed_count` is at least `count`. Return False after the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self.removed_count >= count, timeout_s)

    def close(self) -> None:
        """Refuse further events. The thread sends the remaining ones, and ends."""
        with self._changed:
            self.is_closed = True
            self._wanted = self.put_count + 1
            self._changed.notify_all()

    def abandon(self) -> int:
        """End the thread of a closed queue at once. Return the number of undelivered events."""
        with self._changed:
            self._is_abandoned = True
            self._changed.notify_all()
            return len(self._texts)

    @property
    def is_over(self) -> bool:
        """Whether the thread can end: the queue was abandoned, or is closed and empty."""
        return self._is_abandoned or (self.is_closed and not self._texts)

    @property
    def _is_urgent(self) -> bool:
        return self.removed_count < self._wanted
