"""Sends events to sinks: each worker does, in threads of its own, apart from the runs.

A sink is advanced by one worker at a time. It reads the next events, sends them without a transaction, and moves the
cursor after the answer. A worker that dies in between leaves the cursor in place: the events are sent again, with the
same IDs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from uuid import UUID

from django.db import Error, connection

from runs import chaos
from runs.models import Delivery, Sink, SinkCursor
from runs.telemetry import deliveries, sink_claims
from runs.telemetry.envelope import outgoing
from runs.telemetry.event_batches import EventBatch, next_batch
from runs.telemetry.sink_claims import ClaimExpired
from runs.telemetry.sink_kind import Receipt, SendFailed, SinkKind, SinkTarget
from runs.telemetry.sink_targets import SinkUnusable, target_of
from timeline.bulk.settled import settled_event

log = logging.getLogger(__name__)
#: Sinks that one worker sends to at the same time. Those that do not answer occupy a thread for some seconds each.
THREADS = 4
#: Sinks of one look.
BATCH = 50
IsStopping = Callable[[], bool]
Job = Callable[[], object]


class Exporter:
    """The exporter of this process. Sinks are independent: one that is slow or down does not delay the others."""

    def __init__(self, is_stopping: IsStopping = lambda: False) -> None:
        self._is_stopping = is_stopping
        self._pool: ThreadPoolExecutor | None = None
        #: What is being worked on, so that a look does not begin it again.
        self._busy: set[tuple[str, UUID]] = set()
        self._lock = threading.Lock()
        #: The newest event below which no event can appear.
        self._settled = 0

    def look(self) -> bool:
        """Begin what is due, in threads. Returns False if there are no sinks."""
        if not Sink.objects.sending().exists() and not Delivery.objects.due().exists():
            return False
        for key, job in self._due():
            self._begin(key, job)
        return True

    def run_due(self) -> int:
        """Do what is due now, in this thread, and return the number of sinks that were worked on."""
        due = self._due()
        for _, job in due:
            job()
        return len(due)

    def close(self) -> None:
        """Wait for the requests that are under way."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _due(self) -> list[tuple[tuple[str, UUID], Job]]:
        # None if an import has been storing events for more than a second: the rest is sent when it ends.
        self._settled = settled_event(self._settled) or self._settled
        newest = self._settled
        cursors = SinkCursor.objects.due(newest).order_by("event_id").values_list("pk", flat=True)[:BATCH]
        waiting = Delivery.objects.due().order_by("sink").values_list("sink", flat=True).distinct()[:BATCH]
        return [
            *((("cursor", pk), partial(advance, pk, newest, self._is_stopping)) for pk in cursors),
            *((("delivery", pk), partial(deliveries.send_waiting, pk, self._is_stopping)) for pk in waiting),
        ]

    def _begin(self, key: tuple[str, UUID], job: Job) -> None:
        with self._lock:
            if key in self._busy or self._is_stopping():
                return
            self._busy.add(key)
        self._pool = self._pool or ThreadPoolExecutor(THREADS, thread_name_prefix="export")
        try:
            self._pool.submit(self._work, key, job)
        except RuntimeError:  # no thread can be started now; the next look tries again
            with self._lock:
                self._busy.discard(key)
            raise

    def _work(self, key: tuple[str, UUID], job: Job) -> None:
        try:
            job()
        except Error as error:
            log.warning("a sink cannot use the database: %s", type(error).__name__)
        except Exception:
            log.exception("a sink failed unexpectedly", extra={"sink": str(key[1])})
        finally:
            connection.close()
            with self._lock:
                self._busy.discard(key)


def advance(sink_id: UUID, newest: int, is_stopping: IsStopping = lambda: False) -> None:
    """Send the events up to `newest` that a sink has not had, until one batch fails."""
    cursor = sink_claims.take(sink_id, newest)
    if cursor is None:
        return
    try:
        kind, target = target_of(cursor.sink)
        while cursor.event_id < newest and not is_stopping():
            size = kind.size_of_batch(target)
            batch = next_batch(cursor.sink, kind, cursor.event_id, newest, size=size)
            if not _settle_batch(cursor, kind, target, batch):
                break
        sink_claims.release(cursor)
    except SinkUnusable as error:
        sink_claims.record_failure(cursor, SendFailed(str(error)))
    except SendFailed as failure:
        sink_claims.record_failure(cursor, failure)
        log.warning("a sink does not accept events", extra={"sink": cursor.sink.name, "status": failure.status})
    except ClaimExpired:
        log.info("another worker has taken a sink", extra={"sink": cursor.sink.name})


def _settle_batch(cursor: SinkCursor, kind: SinkKind, target: SinkTarget, batch: EventBatch) -> bool:
    """Send or plan a batch, and move the cursor. False if the sink has to wait. Raises `SendFailed`."""
    if kind.sends_each:
        return deliveries.plan(cursor, batch)
    if not batch.events:
        sink_claims.move(cursor, batch.position)
        return True
    try:
        receipt = _send(kind, target, batch)
    except SendFailed as refusal:
        if not refusal.is_final:
            raise
        deliveries.record_dead(cursor, batch, refusal)
        return True
    chaos.point("export.sent")
    if receipt.refused:
        reason = "; ".join(receipt.refused)
        failure = SendFailed(reason, status=receipt.status, response=receipt.response)
        deliveries.record_dead(cursor, batch, failure, sent=max(len(batch.events) - len(receipt.refused), 0))
    else:
        sink_claims.record_success(cursor, batch.position, sent=len(batch.events))
    return True


def _send(kind: SinkKind, target: SinkTarget, batch: EventBatch) -> Receipt:
    events = outgoing(batch.events)
    return deliveries.send(kind, target, events, events[0].id) if events else Receipt()
