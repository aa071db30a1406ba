"""A process that appends single events to one log, as an external runner's requests do, and measures each append.

`serve` runs in a separate process, where it sets up Django.
"""

from __future__ import annotations

import multiprocessing
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from uuid import UUID

from bench.writers import keyed

#: Seconds between two events.
APART_S = 0.005


class PacedWriter:
    """Controls the writer from the benchmark."""

    def __init__(self, pipe: Connection, pid: int) -> None:
        self._pipe = pipe
        self.pid = pid
        #: The milliseconds of each append in the last block.
        self.took_ms: list[float] = []

    @contextmanager
    def appending(self) -> Iterator[None]:
        """Append events during the block."""
        self._pipe.send(True)
        try:
            yield
        finally:
            self._pipe.send(False)
            self.took_ms = self._pipe.recv()
            if isinstance(self.took_ms, Exception):
                raise self.took_ms

    def idle_ms(self, seconds: float) -> list[float]:
        """Append events for `seconds` without other load."""
        with self.appending():
            time.sleep(seconds)
        return self.took_ms


@contextmanager
def appending_to(log_id: UUID) -> Iterator[PacedWriter]:
    context = multiprocessing.get_context("spawn")
    own_end, writer_end = context.Pipe()
    process = context.Process(target=serve, args=(writer_end, log_id), daemon=True)
    process.start()
    try:
        assert process.pid is not None  # The process has started.
        yield PacedWriter(own_end, process.pid)
    finally:
        own_end.send(None)
        process.join(10)


def serve(pipe: Connection, log_id: UUID) -> None:
    import django

    django.setup()
    from django.db import connections

    append(log_id)  # Opens the connection, and does the one-time work of a process.
    while pipe.recv():
        took: list[float] = []
        try:
            while not pipe.poll():
                began = time.perf_counter()
                append(log_id)
                took.append((time.perf_counter() - began) * 1000)
                time.sleep(APART_S)
        except Exception as error:
            pipe.recv()
            pipe.send(RuntimeError(f"the writer failed: {type(error).__name__}: {error}"))
            continue
        pipe.recv()
        pipe.send(took)
    connections.close_all()


def append(log_id: UUID) -> None:
    """Append a new event of about 300 bytes, and commit."""
    from django.db import transaction

    from timeline import log
    from timeline.models import Source

    with transaction.atomic():
        log.append(log_id, keyed([secrets.token_hex(16)]), source=Source.INGEST)
