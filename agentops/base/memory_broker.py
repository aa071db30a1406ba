"""The broker of a worker without Redis: queues in the memory of its process, with priorities, and without polling."""

from __future__ import annotations

import heapq
import threading
import time
from collections import Counter
from contextlib import suppress
from itertools import count
from queue import Empty
from typing import Any

from kombu.transport import memory

from agentops.base import worker_places
from agentops.base.backing_services import PRIORITIES

#: The lock of all queues of the process. It is notified when a message arrives or a place becomes free.
_changed = threading.Condition()


def notify() -> None:
    """Make the consumers of this process check their queues again."""
    with _changed:
        _changed.notify_all()


worker_places.here.watchers.append(notify)


class MessageHeap:
    """The messages of a queue, by priority and in the order of arrival. Callers hold the lock."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Any]] = []
        self._numbers = count()

    def put(self, message: Any, priority: int) -> None:
        heapq.heappush(self._heap, (priority, next(self._numbers), message))

    def take(self, priorities: set[int]) -> Any:
        """Remove and return the first message. Raises `queue.Empty` if it does not have one of these priorities."""
        if not self._heap or self._heap[0][0] not in priorities:
            raise Empty
        return heapq.heappop(self._heap)[2]

    def oldest(self, priority: int, number: int) -> list[Any]:
        """Return the first `number` messages of a priority, in the order of arrival."""
        messages = sorted(entry for entry in self._heap if entry[0] == priority)
        return [message for _, _, message in messages[:number]]

    def qsize(self) -> int:
        return len(self._heap)

    def counts(self) -> dict[int, int]:
        """Return the number of messages by priority, without priorities that have none."""
        return dict(Counter(priority for priority, _, _ in self._heap))

    def clear(self) -> None:
        self._heap.clear()

    def empty(self) -> bool:
        return not self._heap


class MemoryChannel(memory.Channel):
    """kombu's in-memory channel, with priorities. It delivers a message only if a place is free for it."""

    max_priority = max(PRIORITIES)

    def _queue_for(self, queue: str) -> MessageHeap:
        messages: MessageHeap = self.queues.setdefault(queue, MessageHeap())
        return messages

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
        """Remove and return the next message for which a place is free, and its queue. Raises `queue.Empty`."""
        # Messages of remote control, and replies to them, need no place.
        task_queues = [queue for queue in self._active_queues if not queue.endswith(".pidbox")]
        for queue in set(self._active_queues) - set(task_queues):
            if self.queues.get(queue):
                return self._queue_for(queue).take(set(PRIORITIES)), queue
        for queue, priority in worker_places.here.readable(task_queues):
            try:
                return self._queue_for(queue).take({priority}), queue
            except Empty:
                continue
        raise Empty

    def oldest(self, queue: str, priority: int, number: int) -> list[Any]:
        """Return the first `number` messages of a queue and priority, without removing them."""
        with _changed:
            return self._queue_for(queue).oldest(priority, number)

    def counts(self, queue: str) -> dict[int, int]:
        """Return the number of messages of a queue by priority."""
        with _changed:
            return self._queue_for(queue).counts()


class MemoryTransport(memory.Transport):
    """kombu's in-memory transport, which waits for the next message instead of polling."""

    Channel = MemoryChannel

    def drain_events(self, connection: Any, timeout: float | None = None, **_: Any) -> None:
        """Deliver one message. Raises `socket.timeout` without a message within `timeout` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        with _changed:
            while (delivery := self._take()) is None:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError
                _changed.wait(left)
        self._deliver(*delivery)  # type: ignore[no-untyped-call]

    def _take(self) -> tuple[Any, str] | None:
        """Remove and return a message for which a place is free, and its queue; None if there is none."""
        for channel in list(self.channels):
            with suppress(Empty):
                delivery: tuple[Any, str] = channel.take()
                return delivery
        return None
