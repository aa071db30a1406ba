"""The events that a process has recorded and not yet delivered: a bounded queue in memory."""

from __future__ import annotations

import threading
from collections import deque
from itertools import islice

#: Events of a request, and about its bytes. A site accepts 500 events and 5 MiB.
BATCH_EVENTS, BATCH_BYTES = 500, 2 * 1024 * 1024
#: Places that are kept for events of the status, without which the others of their run are worth little.
RESERVE = 1_000
#: The longest pause between attempts while somebody waits for delivery.
_URGENT_PAUSE_S = 0.25


class Outbox:
    """A queue of JSON texts. Putting never waits; what has no place is refused."""

    def __init__(self, max_events: int, max_bytes: int) -> None:
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._texts: deque[str] = deque()
        self._bytes = 0
        #: Events that were put, and that left, since the beginning.
        self.put_count = 0
        self.left_count = 0
        self.is_closed = self._is_abandoned = False
        #: How often somebody has waited for delivery, and the `left_count` that was waited for.
        self._hurries = self._wanted = 0
        # Re-entrant: a signal handler or a destructor may record while its thread puts an event.
        self._changed = threading.Condition(threading.RLock())

    def __len__(self) -> int:
        return len(self._texts)

    def put(self, text: str, *, is_essential: bool) -> bool:
        """Add an event and return True, or return False if there is no place for it, or the queue is closed."""
        with self._changed:
            if self.is_closed:
                return False
            places = self._max_events + (RESERVE if is_essential else 0)
            room = self._max_bytes + (RESERVE * 1024 if is_essential else 0)
            if len(self._texts) >= places or self._bytes + len(text) > room:
                return False
            self._texts.append(text)
            self._bytes += len(text)
            self.put_count += 1
            if len(self._texts) in (1, BATCH_EVENTS):
                self._changed.notify_all()
            return True

    def batch(self, limit: int = BATCH_EVENTS) -> list[str]:
        """Return the oldest events, as many as a request may have. They stay in the queue until `remove`."""
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
        """Remove the oldest events: they were delivered, or refused for good."""
        with self._changed:
            for _ in range(count):
                self._bytes -= len(self._texts.popleft())
            self.left_count += count
            self._changed.notify_all()

    def wait_for_batch(self, interval_s: float) -> None:
        """Wait until there is an event, and then at most `interval_s` until there is a whole batch."""
        with self._changed:
            self._changed.wait_for(lambda: self._texts or self.is_closed)
            self._changed.wait_for(lambda: self._is_urgent or len(self._texts) >= BATCH_EVENTS, interval_s)

    def wait_before_retry(self, seconds: float) -> None:
        """Wait before the next attempt; shortly, if somebody waits for delivery."""
        with self._changed:
            hurries = self._hurries
            if self._is_urgent:
                seconds = min(seconds, _URGENT_PAUSE_S)
            self._changed.wait_for(lambda: self._hurries != hurries or self._is_abandoned, seconds)

    def hurry(self) -> int:
        """Let what is queued now be sent at once. Return the `left_count` at which it was."""
        with self._changed:
            self._hurries += 1
            self._wanted = self.put_count
            self._changed.notify_all()
            return self._wanted

    def wait_until_left(self, count: int, timeout_s: float) -> bool:
        """Wait until this many events have left, and return whether they have."""
        with self._changed:
            return self._changed.wait_for(lambda: self.left_count >= count, timeout_s)

    def close(self) -> None:
        """Take no more events, and let the thread send what is left and end."""
        with self._changed:
            self.is_closed = True
            self._wanted = self.put_count + 1
            self._changed.notify_all()

    def abandon(self) -> int:
        """Let the thread of a closed queue end at once. Return how many events it leaves behind."""
        with self._changed:
            self._is_abandoned = True
            self._changed.notify_all()
            return len(self._texts)

    @property
    def is_over(self) -> bool:
        """Whether the thread has nothing more to do: nothing is left, and nothing will come."""
        return self._is_abandoned or (self.is_closed and not self._texts)

    @property
    def _is_urgent(self) -> bool:
        return self.left_count < self._wanted
