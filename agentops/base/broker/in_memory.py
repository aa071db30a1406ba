"""The broker of a worker without Redis: queues in the memory of its process. A message wakes the worker at once."""

from __future__ import annotations

import heapq
import threading
import time
from itertools import count
from queue import Empty
from typing import Any

from kombu.transport import memory

from agentops.base.broker import places
from agentops.base.broker.queues import PRIORITIES

#: Guards all queues of the process; notified when a message arrives or a place becomes free.
_changed = threading.Condition()


def notify() -> None:
    """Make the consumers of this process check their queues again."""
    with _changed:
        _changed.notify_all()


places.here.watchers.append(notify)


class MessageHeap:
    """The messages of a queue: by priority, and in the order of arrival. The caller holds the lock."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Any]] = []
        self._numbers = count()

    def put(self, message: Any, priority: int) -> None:
        heapq.heappush(self._heap, (priority, next(self._numbers), message))

    def take(self, priorities: set[int]) -> Any:
        """Remove and return the first message if it has one of these priorities. Raises `queue.Empty`."""
        if not self._heap or self._heap[0][0] not in priorities:
            raise Empty
        return heapq.heappop(self._heap)[2]

    def oldest(self, priority: int, number: int) -> list[Any]:
        """Return the first messages of a priority."""
        messages = [(order, message) for own, order, message in self._heap if own == priority]
        return [message for _, message in heapq.nsmallest(number, messages, key=lambda each: each[0])]

    def qsize(self) -> int:
        return len(self._heap)

    def counts(self) -> dict[int, int]:
        """Return the number of messages of each priority that has any."""
        found: dict[int, int] = {}
        for priority, _, _ in self._heap:
            found[priority] = found.get(priority, 0) + 1
        return found

    def clear(self) -> None:
        self._heap.clear()

    def empty(self) -> bool:
        return not self._heap


class MemoryChannel(memory.Channel):
    """kombu's in-memory channel, with priorities, which only delivers messages that have a free place."""

    max_priority = max(PRIORITIES)

    def _queue_for(self, queue: str) -> MessageHeap:
        found: MessageHeap = self.queues.setdefault(queue, MessageHeap())
        return found

    def _new_queue(self, queue: str, **_: Any) -> None:
        self._queue_for(queue)

    def _put(self, queue: str, message: Any, **_: Any) -> None:
        with _changed:
            self._queue_for(queue).put(message, self._get_message_priority(message))  # type: ignore[no-untyped-call]
            _changed.notify_all()

    def _put_fanout(self, exchange: str, message: Any, routing_key: str | None = None, **_: Any) -> None:
        for queue in self._lookup(exchange, routing_key):  # type: ignore[no-untyped-call]
            self._put(queue, message)

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        with _changed:
            return self._queue_for(queue).take(set(PRIORITIES))

    def _purge(self, queue: str) -> int:
        with _changed:
            messages = self._queue_for(queue)
            size = messages.qsize()
            messages.clear()
        return size

    def take(self) -> tuple[Any, str]:
        """Remove and return the next message for which a place is free, with its queue. Raises `queue.Empty`."""
        # Queues of remote control, and of its replies, are always read.
        own = [queue for queue in self._active_queues if not queue.endswith(".pidbox")]
        for queue in set(self._active_queues) - set(own):
            if self.queues.get(queue):
                return self._queue_for(queue).take(set(PRIORITIES)), queue
        for queue, priority in places.here.readable(own):
            try:
                return self._queue_for(queue).take({priority}), queue
            except Empty:
                continue
        raise Empty

    def oldest(self, queue: str, priority: int, number: int) -> list[Any]:
        """Return the first messages of a queue and priority without removing them."""
        with _changed:
            return self._queue_for(queue).oldest(priority, number)

    def counts(self, queue: str) -> dict[int, int]:
        """Return the number of messages of each priority."""
        with _changed:
            return self._queue_for(queue).counts()


class MemoryTransport(memory.Transport):
    """kombu's in-memory transport, which waits for the next message instead of polling."""

    Channel = MemoryChannel

    def drain_events(self, connection: Any, timeout: float | None = None, **_: Any) -> None:
        """Deliver one message. Raises `socket.timeout` without a message within `timeout` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        with _changed:
            while (found := self._take()) is None:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError
                _changed.wait(left)
        self._deliver(*found)  # type: ignore[no-untyped-call]

    def _take(self) -> tuple[Any, str] | None:
        for channel in list(self.channels):
            try:
                message: tuple[Any, str] = channel.take()
            except Empty:
                continue
            return message
        return None
