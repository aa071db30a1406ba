"""The places of a worker process: the maximum number of run tasks, and of upkeep tasks, that it executes at once.

The transports check for a free place before they read a message. So a busy worker does not take a message that another
worker could process now, and upkeep tasks do not use places of runs. Each kind has one extra place, which only messages
of the first priority may take: runs of dead workers, and short upkeep tasks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from celery import signals
from celery.worker import state

from agentops.base.broker.queues import FIRST, PRIORITIES, UPKEEP

#: Places for upkeep tasks, without the extra one for the first priority.
UPKEEP_PLACES = 2


@dataclass
class Places:
    """The number of messages of each kind that this process may work on; None: unlimited."""

    runs: int | None = None
    upkeep: int | None = None
    #: Whether messages may be taken. False until the process is ready to execute them.
    is_open: bool = True
    #: Called when a place becomes free.
    watchers: list[Callable[[], None]] = field(default_factory=list)

    def total(self) -> int:
        """Return the number of places, including the extra ones for the first priority."""
        return sum(count + 1 for count in (self.runs, self.upkeep) if count)

    def readable(self, queues: Iterable[str]) -> list[tuple[str, int]]:
        """Return the queues and priorities that messages may be taken from now, in the order of reading."""
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
        taken = [_queue_of(request) == UPKEEP for request in requests()]
        return [(kind, count or 0, taken.count(kind)) for kind, count in ((False, self.runs), (True, self.upkeep))]

    def open(self) -> None:
        """Allow the transports to take messages."""
        self.is_open = True
        self.announce()

    def announce(self) -> None:
        """Make the transports check the queues again, because a place is free."""
        for watcher in self.watchers:
            watcher()


#: The places of this process.
here = Places()


def requests() -> list[Any]:
    """Return the requests that this process is working on, without scheduled ones, which wait for their time."""
    working = list(state.requests.values())
    return [each for each in working if each not in state.scheduled_requests and not hasattr(each, "has_ended")]


def _queue_of(request: Any) -> str:
    return str((request.delivery_info or {}).get("routing_key"))


def _note_end(task_id: str = "", **_: Any) -> None:
    """Free the place of a task that ended in a thread. Celery itself does not wake the event loop."""
    request = state.requests.get(task_id)
    if request is not None:
        with suppress(AttributeError):
            request.has_ended = True
    here.announce()


signals.task_postrun.connect(_note_end)


#: The event loop that reads from Redis, and its process. Celery forgets the loop after a connection error.
_loop: tuple[Any, int] | None = None


def use_loop(loop: Any) -> None:
    """Wake this event loop when a place becomes free; otherwise it checks the places once a second."""
    global _loop
    _loop = loop, os.getpid()


def _wake_event_loop() -> None:
    # A forked child inherits this object, but does not run the loop.
    if _loop is not None and _loop[1] == os.getpid():
        _loop[0].call_soon(_do_nothing)


def _do_nothing() -> None:
    pass


here.watchers.append(_wake_event_loop)
