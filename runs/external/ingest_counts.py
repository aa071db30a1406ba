"""Counts the events of each sender by minute and outcome, for the ingest page.

A request only adds to a dictionary of its process. A thread of the web server writes the sums every two seconds in one
statement. So the load of the database does not depend on the number of requests, and no request waits for a row. A
process that is killed loses the counts of its last two seconds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

from django.db import Error, connection

from agentops.base import database_clock
from runs.models import IngestCount

log = logging.getLogger(__name__)
#: Outcomes of events. All outcomes that are not named here are error codes.
ACCEPTED, DUPLICATE = "accepted", "duplicate"
#: Counts spans with an unknown operation name, which are also counted by their outcome.
UNKNOWN_OPERATION = "unknown_operation"
#: The outcomes that are not error codes.
NOT_REFUSED = frozenset({ACCEPTED, DUPLICATE, UNKNOWN_OPERATION})
#: The name of the sender for all runner secrets together, as in the audit log.
RUNNER = "runner"
#: Seconds between two writes.
FLUSH_S = 2.0
#: Maximum pending rows. While the database does not answer, further counts are dropped.
MAX_PENDING = 10_000
#: Rows per statement: SQLite takes at most 32,766 parameters.
BATCH = 1_000
#: Project, sender, minute, outcome.
Key: TypeAlias = tuple[UUID, str, datetime, str]
_COLUMNS = ("project_id", "sender", "minute", "outcome", "count", "last_at")

_lock = threading.Lock()
_pending: dict[Key, tuple[int, datetime]] = {}


def count(project_id: UUID, sender: str, outcomes: Mapping[str, int]) -> None:
    """Add events by their outcome, without a database query."""
    now = database_clock.now()
    minute = now.replace(second=0, microsecond=0)
    with _lock:
        for outcome, events in outcomes.items():
            key = (project_id, sender[:64], minute, outcome[:64])
            earlier, _ = _pending.get(key, (0, now))
            if earlier or len(_pending) < MAX_PENDING:
                _pending[key] = (earlier + events, now)


def flush() -> None:
    """Write the counts of this process. If the database does not answer, they stay pending."""
    with _lock:
        counts = dict(_pending)
        _pending.clear()
    # Sorted, so that two processes cannot deadlock.
    rows = [(*key, *value) for key, value in sorted(counts.items())]
    written = 0
    try:
        for start in range(0, len(rows), BATCH):
            _add(rows[start : start + BATCH])
            written = start + BATCH
    except Error as error:
        log.warning("counts of ingest cannot be written: %s", type(error).__name__)
        with _lock:
            for key, (events, last_at) in sorted(counts.items())[written:]:
                newer, newer_at = _pending.get(key, (0, last_at))
                _pending[key] = (events + newer, newer_at)


@contextmanager
def flushing() -> Iterator[None]:
    """Write the counts of this process every two seconds inside the `with` block, and at its end."""
    ended = threading.Event()
    thread = threading.Thread(target=_flush_until, args=[ended], name="ingest-counts", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _flush_until(ended: threading.Event) -> None:
    while not ended.is_set():
        ended.wait(FLUSH_S)
        try:
            flush()
        finally:
            connection.close()


def _add(rows: Sequence[tuple[UUID, str, datetime, str, int, datetime]]) -> None:
    table, columns = IngestCount._meta.db_table, ", ".join(f'"{name}"' for name in _COLUMNS)
    places = ", ".join(["(%s, %s, %s, %s, %s, %s)"] * len(rows))
    to_db = connection.ops.adapt_datetimefield_value
    values: list[Any] = []
    for project_id, sender, minute, outcome, events, last_at in rows:
        values += [_id(project_id), sender, to_db(minute), outcome, events, to_db(last_at)]
    with connection.cursor() as cursor:
        cursor.execute(
            f'INSERT INTO "{table}" ({columns}) VALUES {places}'  # noqa: S608 - names of the model
            " ON CONFLICT (project_id, sender, minute, outcome) DO UPDATE"
            f' SET "count" = "{table}"."count" + excluded."count", last_at = excluded.last_at',
            values,
        )


def _id(project_id: UUID) -> UUID | str:
    # SQLite stores IDs as 32 hexadecimal digits.
    return project_id if connection.features.has_native_uuid_field else project_id.hex
