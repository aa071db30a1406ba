"""Eight writers of the log: two processes with four threads each, controlled by the benchmark.

`serve` runs in a separate process, where it sets up Django.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from multiprocessing.connection import Connection
from typing import Any
from uuid import UUID

import psycopg

PROCESSES = 2
THREADS = 4
EVENT_TYPE = "x.bench"

#: The results of one writer: (event_id, seq, duplicate, conflict) in the order of its batches.
AppendResults = list[tuple[str, int, bool, bool]]


@dataclass(frozen=True)
class WriteOrder:
    """A task for the writers. With `lists`, each sends these batches of IDs; otherwise new events for `seconds`."""

    logs: Sequence[UUID]
    batch: int = 1
    seconds: float = 1.0
    lists: Sequence[Sequence[Sequence[str]]] | None = None
    #: Call the bare append of bench.append with plain psycopg, with one statement and one commit per batch.
    bare: bool = False


@dataclass(frozen=True)
class WriterReport:
    events: int
    seconds: float
    errors: list[str]
    results: list[AppendResults]


class Writers:
    def __init__(self, pipes: Sequence[Connection]) -> None:
        self._pipes = pipes

    def append(self, order: WriteOrder) -> list[WriterReport]:
        """Append with all writers at once, and return the report of each process."""
        for pipe in self._pipes:
            pipe.send(order)
        return [pipe.recv() for pipe in self._pipes]

    def rate(self, order: WriteOrder) -> float:
        """Return the events per second of all writers together."""
        reports = self.append(order)
        failed = [error for process in reports for error in process.errors]
        if failed:
            raise RuntimeError(f"a writer failed: {failed[0]}")
        return sum(process.events for process in reports) / max(process.seconds for process in reports)


@contextmanager
def writing() -> Iterator[Writers]:
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(PROCESSES)]
    processes = [context.Process(target=serve, args=(writer_end, number), daemon=True)
                 for number, (_, writer_end) in enumerate(pairs)]  # fmt: skip
    for process in processes:
        process.start()
    try:
        yield Writers([own_end for own_end, _ in pairs])
    finally:
        for own_end, _ in pairs:
            own_end.send(None)
        for process in processes:
            process.join(10)


def serve(pipe: Connection, number: int) -> None:
    import django

    django.setup()
    from django.db import connections

    threads = [Thread(number * THREADS + n) for n in range(THREADS)]
    try:
        while (order := pipe.recv()) is not None:
            pipe.send(_execute(order, threads))
    finally:
        for thread in threads:
            thread.end()
        connections.close_all()


class Thread:
    """A writer with a persistent connection."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._start_signal = threading.Semaphore(0)
        self._end_signal = threading.Semaphore(0)
        self._order: WriteOrder | None = None
        self._random = random.Random(number)
        self._plain: psycopg.Connection | None = None
        self.events = 0
        self.errors: list[str] = []
        self.results: AppendResults = []
        threading.Thread(target=self._run, daemon=True).start()

    def begin(self, order: WriteOrder) -> None:
        self._order, self.events, self.errors, self.results = order, 0, [], []
        self._start_signal.release()

    def wait(self) -> None:
        self._end_signal.acquire()

    def end(self) -> None:
        self._order = None
        self._start_signal.release()
        self.wait()

    def _run(self) -> None:
        from django.db import connection

        while True:
            self._start_signal.acquire()
            if self._order is None:
                connection.close()
                if self._plain is not None:
                    self._plain.close()
                self._end_signal.release()
                return
            try:
                if self._plain is None and self._order.bare:
                    self._plain = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)
                self._work(self._order)
            except Exception as error:
                self.errors.append(f"{type(error).__name__}: {error}"[:300])
            self._end_signal.release()

    def _work(self, order: WriteOrder) -> None:
        if order.lists is None:
            until = time.perf_counter() + order.seconds
            while time.perf_counter() < until:
                self._append(order, [f"{self._random.getrandbits(128):032x}" for _ in range(order.batch)])
            return
        for ids in order.lists[self._number % len(order.lists)]:
            try:
                self.results += zip(ids, *zip(*self._append(order, ids), strict=True), strict=True)
            except Exception as error:
                self.errors.append(f"{type(error).__name__}: {error}"[:300])

    def _append(self, order: WriteOrder, ids: Sequence[str]) -> list[tuple[int, bool, bool]]:
        if order.bare:
            bare_append(self._plain, self._random.choice(order.logs), ids)
            self.events += len(ids)
            return []
        from django.db import transaction

        from timeline import log
        from timeline.models import Source

        with transaction.atomic():
            results = log.append(self._random.choice(order.logs), keyed(ids), source=Source.INGEST)
        self.events += len(ids)
        return [(one.seq, one.duplicate, one.conflict) for one in results]


def bare_append(connection: psycopg.Connection | None, log_id: UUID, ids: Sequence[str]) -> None:
    """Append the same events with the bare function of bench.append, without validation, redaction and result."""
    assert connection is not None
    payloads = [json.dumps(body(event_id)) for event_id in ids]
    hashes = [digest(event_id) for event_id in ids]
    connection.execute(
        "SELECT * FROM twin_append(%s, %b::text[], %b::text[], %b::bytea[])", [log_id, list(ids), payloads, hashes]
    ).fetchall()


def keyed(ids: Sequence[str]) -> list[Any]:
    """Return entries as in ingest: with the sender's ID and the hash of the body."""
    from timeline.log import Entry

    return [Entry(body(event_id), EVENT_TYPE, event_id=event_id, body_sha256=digest(event_id)) for event_id in ids]


def body(seed: str) -> dict[str, Any]:
    """Return about 300 bytes, the same for the same seed."""
    return {"tool": "search", "query": (seed * 7)[:200], "tokens": 512, "duration_ms": 17, "ok": True, "model": "m-1"}


def digest(seed: str) -> bytes:
    return sha256(seed.encode()).digest()


def _execute(order: WriteOrder, threads: Sequence[Thread]) -> WriterReport:
    began = time.perf_counter()
    for thread in threads:
        thread.begin(order)
    for thread in threads:
        thread.wait()
    seconds = time.perf_counter() - began
    errors = [error for thread in threads for error in thread.errors]
    return WriterReport(
        sum(thread.events for thread in threads), seconds, errors, [thread.results for thread in threads]
    )
