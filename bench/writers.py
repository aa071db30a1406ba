"""Eight writers of the log: two processes with four threads each, controlled by the benchmark.

`serve` runs in a separate process, where it sets up Django.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from uuid import UUID

import psycopg

from bench import twin

PROCESSES = 2
THREADS = 4

#: (log ID, event IDs): stores the events in one commit.
Append = Callable[[UUID, Sequence[str]], object]


@dataclass(frozen=True)
class WriteOrder:
    """Append new events to random logs for `seconds`, `batch` in each commit."""

    logs: Sequence[UUID]
    batch: int
    seconds: float
    #: Call the bare append of bench.twin with plain psycopg.
    bare: bool = False


class Writers:
    def __init__(self, pipes: Sequence[Connection]) -> None:
        self._pipes = pipes

    def rate(self, order: WriteOrder) -> float:
        """Return the events per second of all writers together."""
        for pipe in self._pipes:
            pipe.send(order)
        reports = [pipe.recv() for pipe in self._pipes]
        for report in reports:
            if isinstance(report, str):
                raise RuntimeError(f"a writer failed: {report}")
        return sum(events for events, _ in reports) / max(seconds for _, seconds in reports)


@contextmanager
def writing() -> Iterator[Writers]:
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(PROCESSES)]
    processes = [context.Process(target=serve, args=(writer_end,), daemon=True) for _, writer_end in pairs]
    for process in processes:
        process.start()
    try:
        yield Writers([own_end for own_end, _ in pairs])
    finally:
        for own_end, _ in pairs:
            own_end.send(None)
        for process in processes:
            process.join(10)


def serve(pipe: Connection) -> None:
    """Execute orders. Answer each with the events and the seconds of all threads, or with an error."""
    import django

    django.setup()
    threads = [_Thread() for _ in range(THREADS)]
    while (order := pipe.recv()) is not None:
        began = time.perf_counter()
        for thread in threads:
            thread.begin(order)
        for thread in threads:
            thread.done.acquire()
        errors = [thread.error for thread in threads if thread.error]
        pipe.send(errors[0] if errors else (sum(thread.events for thread in threads), time.perf_counter() - began))


class _Thread:
    """A writer with persistent connections."""

    def __init__(self) -> None:
        self._begun = threading.Semaphore(0)
        self._order: WriteOrder | None = None
        self._plain: psycopg.Connection | None = None
        self.done = threading.Semaphore(0)
        self.events = 0
        self.error = ""
        threading.Thread(target=self._run, daemon=True).start()

    def begin(self, order: WriteOrder) -> None:
        self._order, self.events, self.error = order, 0, ""
        self._begun.release()

    def _run(self) -> None:
        while True:
            self._begun.acquire()
            assert self._order is not None
            try:
                self._work(self._order, self._append_bare if self._order.bare else append)
            except Exception as error:
                self.error = f"{type(error).__name__}: {error}"[:300]
            self.done.release()

    def _work(self, order: WriteOrder, append_to: Append) -> None:
        until = time.perf_counter() + order.seconds
        while time.perf_counter() < until:
            ids = [f"{random.getrandbits(128):032x}" for _ in range(order.batch)]
            append_to(random.choice(order.logs), ids)
            self.events += len(ids)

    def _append_bare(self, log_id: UUID, ids: Sequence[str]) -> None:
        if self._plain is None:
            self._plain = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)
        twin.append(self._plain, twin.append_values(log_id, ids))


def append(log_id: UUID, ids: Sequence[str]) -> None:
    """Append events by the product's function, in one commit."""
    from django.db import transaction

    from timeline import log
    from timeline.models import Source

    with transaction.atomic():
        log.append(log_id, twin.entries(ids), source=Source.INGEST)
