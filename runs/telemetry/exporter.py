"""Send events to sinks, in separate threads of each worker, independently of the runs.

One worker at a time advances a sink. It reads the next events, sends them outside of a transaction, and moves the
cursor after the answer. If the worker dies before that, the cursor stays in place: the events are sent again, with the
same IDs.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple
from uuid import UUID

from django.db import Error, connection

from agentops.base.fair_shares import in_turns
from runs import chaos
from runs.models import Delivery, Sink, SinkCursor
from runs.telemetry import deliveries, sink_claims
from runs.telemetry.envelope import outgoing
from runs.telemetry.sink_claims import ClaimExpired, EventBatch, next_batch
from runs.telemetry.sink_kind import Receipt, SendFailed, SinkKind, SinkTarget
from runs.telemetry.sink_targets import SinkUnusable, target_of
from timeline.reading import settled_event

log = logging.getLogger(__name__)
#: Concurrent requests of a worker. Receivers that do not answer occupy a thread for several seconds each.
THREADS = 8
#: Maximum concurrent requests to one webhook, if it accepts requests and more deliveries are waiting.
MAX_LANES = 3
#: Batches after which a sink leaves its thread to another sink of the same project.
TURN = 20
IsStopping = Callable[[], bool]
#: The type of work (`cursor` or `delivery`), the sink, and the lane: which of its concurrent requests this is.
JobKey = tuple[str, UUID, int]


class Job(NamedTuple):
    """Due work of a sink: new events, or waiting deliveries."""

    key: JobKey
    #: None for a sink of the whole site.
    project_id: UUID | None
    #: Does the work until its argument returns True. Returns whether work is left.
    act: Callable[[IsStopping], bool]


class Exporter:
    """The exporter of this process. Sinks are independent: a slow or unreachable one does not delay the others.

    The threads serve the projects in turns. A free thread takes a sink of the project that has the fewest threads; a
    sink with a backlog leaves its thread to a project that has fewer.
    """

    def __init__(self, is_stopping: IsStopping = lambda: False, after_job: Callable[[], None] = lambda: None) -> None:
        """`after_job` is called when a job has ended, because its sink may have more work due."""
        self._is_stopping, self._after_job = is_stopping, after_job
        self._pool: ThreadPoolExecutor | None = None
        #: Due jobs in the order of turns, as of the last check.
        self._waiting: list[Job] = []
        #: Jobs in progress, so that a check does not start them again.
        self._busy: dict[JobKey, Job] = {}
        #: Concurrent requests to each webhook that gets more than one.
        self._lanes: dict[UUID, int] = {}
        self._lock = threading.Lock()
        #: The ID up to which all events are visible.
        self._settled = 0
        #: Whether the last check saw all events. False if an event is committed while an older one is not.
        self.has_settled = True

    def look(self) -> bool:
        """Start the due jobs in threads. Returns False if there are no sinks."""
        self.has_settled = True
        if not Sink.objects.sending().exists() and not Delivery.objects.due().exists():
            return False
        due = self._due()
        with self._lock:
            self._waiting = due
        for _ in range(THREADS):
            if (job := self._take()) is None:
                break
            self._begin(job)
        return True

    def run_due(self) -> int:
        """Do the due jobs in this thread, and return the number of sinks served."""
        due = self._due()
        for job in due:
            while job.act(self._is_stopping):
                pass
        return len(due)

    def close(self) -> None:
        """Wait for the requests in progress."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _due(self) -> list[Job]:
        # None if an import has been storing events for more than a second. Newer events are sent after the import.
        settled = settled_event(self._settled)
        self.has_settled = settled is not None
        self._settled = settled or self._settled
        newest = self._settled
        cursors = SinkCursor.objects.due(newest).order_by("event_id").values_list("pk", "sink__project")
        waiting = Delivery.objects.due().order_by("sink").values_list("sink", "sink__project").distinct()
        jobs = [
            *(Job(("cursor", pk, 0), project, partial(advance, pk, newest)) for pk, project in cursors),
            *(
                Job(("delivery", pk, lane), project, partial(self._deliver, pk, lane))
                for pk, project in waiting
                for lane in range(self._lanes.get(pk, 1))
            ),
        ]
        return in_turns(jobs, lambda job: job.project_id)

    def _deliver(self, sink_id: UUID, lane: int, is_stopping: IsStopping) -> bool:
        """Send a turn of deliveries. Returns whether more may be due.

        A receiver that accepts most of a full turn gets one more concurrent request afterwards, others one fewer.
        """
        turn = deliveries.send_waiting(sink_id, is_stopping, lane=lane)
        with self._lock:
            lanes = self._lanes.pop(sink_id, 1)
            lanes = min(lanes + 1, MAX_LANES) if turn.is_full and turn.is_mostly_accepted else lanes - 1
            if lanes > 1:
                self._lanes[sink_id] = lanes
        return turn.is_full

    def _take(self) -> Job | None:
        """Remove the next job from the waiting ones and mark it as busy: a job of the project with the fewest threads.

        Returns None if no job waits or no thread is free.
        """
        with self._lock:
            if len(self._busy) >= THREADS or self._is_stopping():
                return None
            self._waiting = [job for job in self._waiting if job.key not in self._busy]
            if not self._waiting:
                return None
            threads = self._threads()
            job = min(self._waiting, key=lambda job: threads[job.project_id])
            self._waiting.remove(job)
            self._busy[job.key] = job
            return job

    def _threads(self) -> Counter[UUID | None]:
        """Return the number of threads of each project."""
        return Counter(job.project_id for job in self._busy.values())

    def _is_turn_over(self, job: Job, batches: int) -> bool:
        """Return whether a sink must leave its thread to another one after this number of batches."""
        with self._lock:
            threads = self._threads()
            others = [one for one in self._waiting if one.key not in self._busy]
            has_more_threads = any(threads[one.project_id] < threads[job.project_id] for one in others)
            return bool(others) and (has_more_threads or batches >= TURN)

    def _begin(self, job: Job) -> None:
        self._pool = self._pool or ThreadPoolExecutor(THREADS, thread_name_prefix="export")
        try:
            self._pool.submit(self._work, job)
        except RuntimeError:  # no thread can be started now; the next check tries again
            with self._lock:
                self._busy.pop(job.key)
            raise

    def _work(self, job: Job | None) -> None:
        """Do a job, and then the next ones."""
        while job is not None:
            has_more = False
            try:
                has_more = job.act(_SinkTurn(partial(self._is_turn_over, job), self._is_stopping))
            except Error as error:
                log.warning("a sink cannot use the database: %s", type(error).__name__)
            except Exception:
                log.exception("a sink failed unexpectedly", extra={"sink": str(job.key[1])})
            finally:
                connection.close()
                with self._lock:
                    self._busy.pop(job.key)
                    if has_more and job.key not in {one.key for one in self._waiting}:
                        self._waiting.append(job)
                self._after_job()
            job = self._take()


class _SinkTurn:
    """Tells a sink whether to stop. It is called before each batch. Before the first one, only a shutdown stops it."""

    def __init__(self, is_over: Callable[[int], bool], is_stopping: IsStopping) -> None:
        self._is_over, self._is_stopping, self._batches = is_over, is_stopping, 0

    def __call__(self) -> bool:
        self._batches += 1
        return self._is_stopping() or (self._batches > 1 and self._is_over(self._batches - 1))


def advance(sink_id: UUID, newest: int, is_stopping: IsStopping = lambda: False) -> bool:
    """Send the events up to `newest` that a sink has not received, until it has to rest or `is_stopping` returns True.

    Always returns False, for `Job.act`: the next check finds the remaining events.
    """
    cursor = sink_claims.claim(sink_id, newest)
    if cursor is None:
        return False
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
                    return False
        sink_claims.release(cursor)
    except SinkUnusable as error:
        sink_claims.record_failure(cursor, SendFailed(str(error)))
        sink_claims.release(cursor)
    except ClaimExpired:
        log.info("another worker has taken a sink", extra={"sink": cursor.sink.name})
    return False


def _settle_batch(cursor: SinkCursor, kind: SinkKind, target: SinkTarget, batch: EventBatch) -> bool:
    """Send or plan a batch, and move the cursor. Returns False if the sink has to wait. Raises `SendFailed`."""
    if kind.sends_each:
        return deliveries.plan(cursor, batch)
    if not batch.events:
        sink_claims.move(cursor, batch.position)
        return True
    try:
        events = outgoing(batch.events)
        receipt = deliveries.send(kind, target, events, events[0].id) if events else Receipt()
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
