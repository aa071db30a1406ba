"""The places of a worker process: how many run tasks, and how many upkeep tasks, it may execute at once.

The transports check for a free place before they read a message. So a busy worker does not take a message that another
worker could process now, and upkeep tasks do not use the places of runs. Each kind of task has one additional place,
for messages of the first priority: runs of dead workers, and short upkeep tasks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from celery import signals
from celery.worker import state

from agentops.base.backing_services import FIRST, PRIORITIES, UPKEEP

#: Places for upkeep tasks, without the additional one.
UPKEEP_PLACES = 2


@dataclass
class Places:
    """The number of messages of each kind that this process may work on at once. None: no limit."""

    runs: int | None = None
    upkeep: int | None = None
    #: Whether messages may be taken. A worker sets it to False until it is ready to execute them.
    is_open: bool = True
    #: Functions that are called when a place becomes free.
    watchers: list[Callable[[], None]] = field(default_factory=list)

    def total(self) -> int:
        """Return the number of places, including the additional ones."""
        return sum(count + 1 for count in (self.runs, self.upkeep) if count)

    def readable(self, queues: Iterable[str]) -> list[tuple[str, int]]:
        """Return the queues and priorities from which messages may be taken now, in the order of reading."""
        if self.runs is None or self.upkeep is None:
            return [(queue, priority) for priority in PRIORITIES for queue in queues]
        if not self.is_open:
            return []
        free = {kind: count - taken for kind, count, taken in self._counts()}
        return [
            (queue, priority)
            for priority in PRIORITIES
            for queue in queues
            if free[queue == UPKEEP] + (priority == FIRST and self._has(queue)) > 0
        ]

    def _has(self, queue: str) -> bool:
        return bool(self.upkeep if queue == UPKEEP else self.runs)

    def _counts(self) -> list[tuple[bool, int, int]]:
        """Return for both kinds whether it is upkeep, the number of places, and the number of used places."""
        taken = [_queue_of(request) == UPKEEP for request in requests()]
        return [(kind, count or 0, taken.count(kind)) for kind, count in ((False, self.runs), (True, self.upkeep))]

    def open(self) -> None:
        """Allow the transports to take messages."""
        self.is_open = True
        self.announce()

    def announce(self) -> None:
        """Call the watchers, so that the transports check the queues again."""
        for watcher in self.watchers:
            watcher()


#: The places of this process.
here = Places()


def requests() -> list[Any]:
    """Return the requests that this process is working on, without requests that wait for a scheduled time."""
    received = list(state.requests.values())
    return [each for each in received if each not in state.scheduled_requests and not hasattr(each, "has_ended")]


def _queue_of(request: Any) -> str:
    return str((request.delivery_info or {}).get("routing_key"))


def _note_end(task_id: str = "", **_: Any) -> None:
    """Free the place of a task that has ended in a thread, after which Celery does not wake the event loop."""
    request = state.requests.get(task_id)
    if request is not None:
        with suppress(AttributeError):
            request.has_ended = True
    here.announce()


signals.task_postrun.connect(_note_end)


#: The event loop that reads from Redis, and the ID of its process. Stored here, because Celery drops its reference to
#: the loop after a connection error.
_loop: tuple[Any, int] | None = None


def use_loop(loop: Any) -> None:
    """Wake this event loop when a place becomes free. Otherwise the loop would check the places once a second."""
    global _loop
    _loop = loop, os.getpid()


def _wake_event_loop() -> None:
    # A forked child inherits `_loop`, but does not run it.
    if _loop is not None and _loop[1] == os.getpid():
        _loop[0].call_soon(lambda: None)


here.watchers.append(_wake_event_loop)
