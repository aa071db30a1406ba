"""The tables of the page: workers, queues with their messages, and active slices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from agentops.base.broker.queues import UPKEEP
from runs.lifecycle.suspicion import CHILD_SEPARATOR
from runs.models import WorkerProcess
from runs.queries import queue_state
from runs.queries.broker_state import BrokerState

#: Maximum listed workers.
MAX_WORKERS = 50


class ShownWorker(NamedTuple):
    """A row of the table of workers."""

    name: str
    queues: str
    runs: int
    concurrency: int
    since: datetime


class ShownQueue(NamedTuple):
    """A row of the table of queues."""

    name: str
    messages: int
    #: Messages by priority, such as "6: 3; 9: 1".
    by_priority: str


@dataclass(frozen=True)
class ShownWorkers:
    """The living workers: processes with a row, and owners of leases without one, such as commands."""

    listed: list[ShownWorker]
    count: int
    idle: int

    def __str__(self) -> str:
        return f"{self.count}: {self.count - self.idle} with runs, {self.idle} idle" if self.count else "none"


def shown_workers() -> ShownWorkers:
    """Return the living workers, idle ones too. Two queries."""
    busy: dict[str, int] = {}
    for owner, count in queue_state.working_workers().items():
        # The process that tries a suspected run belongs to the worker that started it. Host names may contain dots.
        host_and_pid, colon, token = owner.rpartition(":")
        name = host_and_pid + colon + token.partition(CHILD_SEPARATOR)[0]
        busy[name] = busy.get(name, 0) + count
    processes = list(WorkerProcess.objects.alive().order_by("name"))
    listed = [
        ShownWorker(each.name, ", ".join(each.queues), busy.get(each.name, 0), each.concurrency, each.started_at)
        for each in processes[:MAX_WORKERS]
    ]
    names = {each.name for each in processes}
    return ShownWorkers(listed, len(names | set(busy)), len(names - set(busy)))


def shown_queues(broker: BrokerState) -> Iterator[ShownQueue]:
    """Yield the queues by name, the queue of upkeep last."""
    for queue in sorted(broker.lengths, key=lambda name: (name == UPKEEP, name)):
        counts = broker.lengths[queue]
        by_priority = "; ".join(f"{priority}: {counts[priority]:,}" for priority in sorted(counts))
        yield ShownQueue(queue, sum(counts.values()), by_priority)
