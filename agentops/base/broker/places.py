"""The places of a worker process: how many tasks of runs, and of upkeep, it executes at the same time.

The transports ask before they read a message. So a busy worker takes none that another one could begin now, and no
task of upkeep takes a place of a run. Of each kind there is one place more, which only messages of the first priority
may take: runs of dead workers, and the short tasks of upkeep.
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

#: Places for tasks of upkeep, without the one for the first priority.
UPKEEP_PLACES = 2


@dataclass
class Places:
    """How many messages of each kind this process may work on; any number where nothing was set."""

    runs: int | None = None
    upkeep: int | None = None
    #: Whether messages may be taken: not before the process is ready to execute them.
    is_open: bool = True
    #: Called when a place has become free.
    watchers: list[Callable[[], None]] = field(default_factory=list)

    def total(self) -> int:
        """Return the number of places, with those for the first priority."""
        return sum(count + 1 for count in (self.runs, self.upkeep) if count)

    def readable(self, queues: Iterable[str]) -> list[tuple[str, int]]:
        """Return the queues and priorities of which a message may be taken now, in the order of reading."""
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
        """Let the transports take messages."""
        self.is_open = True
        self.announce()

    def announce(self) -> None:
        """Let the transports look again: a place is free."""
        for watcher in self.watchers:
            watcher()


#: Those of this process.
here = Places()


def requests() -> list[Any]:
    """Return the requests on which this process works: no scheduled ones, which wait for their time."""
    working = list(state.requests.values())
    return [each for each in working if each not in state.scheduled_requests and not hasattr(each, "has_ended")]


def _queue_of(request: Any) -> str:
    return str((request.delivery_info or {}).get("routing_key"))


def _note_end(task_id: str = "", **_: Any) -> None:
    """Free the place of a task that has ended in a thread. Celery itself would not wake the event loop."""
    request = state.requests.get(task_id)
    if request is not None:
        with suppress(AttributeError):
            request.has_ended = True
    here.announce()


signals.task_postrun.connect(_note_end)


#: The event loop that reads from Redis, and its process. Celery forgets it after an error of the connection.
_loop: tuple[Any, int] | None = None


def use_loop(loop: Any) -> None:
    """Wake this event loop when a place has become free; otherwise it looks at the places once a second."""
    global _loop
    _loop = loop, os.getpid()


def _wake_event_loop() -> None:
    # A forked child inherits this object, but does not run the loop.
    if _loop is not None and _loop[1] == os.getpid():
        _loop[0].call_soon(_do_nothing)


def _do_nothing() -> None:
    pass


here.watchers.append(_wake_event_loop)
