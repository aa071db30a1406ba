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
#: Requests of a worker at the same time. Receivers that do not answer occupy a thread for some seconds each.
THREADS = 8
#: Requests to one webhook at the same time, once it accepts what it gets and more is waiting.
MAX_LANES = 3
#: Sinks of one look.
BATCH = 50
IsStopping = Callable[[], bool]
#: Work on a sink. Returns whether there is more of it.
Job = Callable[[], bool]
#: What is worked on, the sink, and the lane.
Key = tuple[str, UUID, int]


class Exporter:
    """The exporter of this process. Sinks are independent: one that is slow or down does not delay the others."""

    def __init__(self, is_stopping: IsStopping = lambda: False) -> None:
        self._is_stopping = is_stopping
        self._pool: ThreadPoolExecutor | None = None
        #: What is being worked on, so that a look does not begin it again.
        self._busy: set[Key] = set()
        #: Requests that a webhook gets at the same time, if more than one.
        self._lanes: dict[UUID, int] = {}
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
            while job():
                pass
        return len(due)

    def close(self) -> None:
        """Wait for the requests that are under way."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _due(self) -> list[tuple[Key, Job]]:
        # None if an import has been storing events for more than a second: the rest is sent when it ends.
        self._settled = settled_event(self._settled) or self._settled
        newest = self._settled
        cursors = SinkCursor.objects.due(newest).order_by("event_id").values_list("pk", flat=True)[:BATCH]
        waiting = Delivery.objects.due().order_by("sink").values_list("sink", flat=True).distinct()[:BATCH]
        return [
            *((("cursor", pk, 0), partial(self._advance, pk, newest)) for pk in cursors),
            *(
                (("delivery", pk, lane), partial(self._deliver, pk, lane))
                for pk in waiting
                for lane in range(self._lanes.get(pk, 1))
            ),
        ]

    def _advance(self, sink_id: UUID, newest: int) -> bool:
        advance(sink_id, newest, self._is_stopping)
        return False

    def _deliver(self, sink_id: UUID, lane: int) -> bool:
        """Take a turn. A receiver that accepts most of a full turn gets one more request at a time, others fewer."""
        turn = deliveries.send_waiting(sink_id, self._is_stopping, lane=lane)
        with self._lock:
            lanes = self._lanes.pop(sink_id, 1)
            lanes = min(lanes + 1, MAX_LANES) if turn.is_full and turn.is_accepted else lanes - 1
            if lanes > 1:
                self._lanes[sink_id] = lanes
        return turn.is_full

    def _begin(self, key: Key, job: Job) -> None:
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

    def _work(self, key: Key, job: Job) -> None:
        has_more = False
        try:
            has_more = job()
        except Error as error:
            log.warning("a sink cannot use the database: %s", type(error).__name__)
        except Exception:
            log.exception("a sink failed unexpectedly", extra={"sink": str(key[1])})
        finally:
            connection.close()
            with self._lock:
                self._busy.discard(key)
        if has_more:
            # Behind the other sinks, so that each gets its turn.
            self._begin(key, job)


def advance(sink_id: UUID, newest: int, is_stopping: IsStopping = lambda: False) -> None:
    """Send the events up to `newest` that a sink has not had, until the sink has to rest."""
    cursor = sink_claims.take(sink_id, newest)
    if cursor is None:
        return
    try:
        kind, target = target_of(cursor.sink)
        while cursor.event_id < newest and not is_stopping():
            size = kind.size_of_batch(target)
            batch = next_batch(cursor.sink, kind, cursor.event_id, newest, size=size)
            try:
                if not _settle_batch(cursor, kind, target, batch):
                    break
            except SendFailed as failure:
                log.warning("a sink does not accept events", extra={"sink": cursor.sink.name, "status": failure.status})
                if sink_claims.record_failure(cursor, failure):
                    return
        sink_claims.release(cursor)
    except SinkUnusable as error:
        sink_claims.record_failure(cursor, SendFailed(str(error)))
        sink_claims.release(cursor)
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
