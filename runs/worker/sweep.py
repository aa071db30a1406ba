"""The sweep: ends waits that are over, and sends missing messages. It drives no run.

A message may be lost with its broker, or with the worker that had taken it. With Redis, one sweep per period is enough
for the whole site. Without Redis, each worker has its queues in memory and fills them itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db.models import Min

from agentops.base import database_clock
from agentops.base.broker import backlog
from agentops.base.broker.queues import FIRST
from agentops.base.database_clock import Now
from runs import chaos
from runs.engine import due_resumes
from runs.external.silence import notice_silence
from runs.lifecycle import approval_decisions, children, transitions, wake
from runs.models import AgentRun, Chore
from runs.models.querysets import RunQuerySet
from runs.queries.queue_state import SENT_AT, SWEEP
from runs.statuses import RunStatus
from runs.worker import worker

#: The maximum number of messages of one sweep, for runs of dead workers and for each priority of a queue. A queue in
#: memory holds no more of them.
BATCH = 500
#: The part of the period after which the next sweep may begin.
PART = 0.8
#: Messages read at the head of a queue. Some may name runs that are no longer queued.
HEAD = 20
#: Seconds that a message may take between a process, Redis and a claim.
ON_ITS_WAY_S = 2.0


def sweep(*, now: bool = False) -> int:
    """End waits and send missing messages. Returns how many. Does nothing if another worker swept within the period.

    `now`: sweep in any case, because there is work to do.
    """
    every = timedelta(seconds=settings.AGENTOPS_SWEEP_S * PART)
    if settings.REDIS_URL and not Chore.objects.take(SWEEP, every=every) and not now:
        return 0
    end_waits()
    notice_silence()
    return send_missing()


def end_waits() -> None:
    """Queue the runs whose waits are over."""
    transitions.end_waits()
    children.continue_parents()
    due_resumes.end_waits()
    approval_decisions.expire_due()


def send_missing() -> int:
    """Send a message for each claimable run without a message in a queue. Returns how many.

    Stops at the first message that cannot be sent, and when the worker ends.
    """
    count = 0
    for run, priority in _without_message() if wake.can_send() else ():
        chaos.point("sweep.run_seen")
        if worker.is_stopping() or not wake.send(run, priority=priority):
            break
        chaos.point("sweep.message_sent")
        count += 1
    return count


def _without_message() -> Iterator[tuple[AgentRun, int]]:
    """Yield the runs, and the priorities of their messages."""
    for run in _left_by_dead_workers():
        yield run, FIRST
    queued = AgentRun.objects.runnable().filter(status=RunStatus.QUEUED)
    for queue, priority in queued.order_by("queue", "priority").values_list("queue", "priority").distinct():
        of_group = queued.filter(queue=queue, priority=priority)
        find = _lost_from_redis if settings.REDIS_URL else _missing_in_memory
        yield from find(of_group, queue, priority + 1)


def _left_by_dead_workers() -> list[AgentRun]:
    lapsed = AgentRun.objects.runnable().filter(status=RunStatus.RUNNING)
    queues = set(lapsed.values_list("queue", flat=True))
    waiting = {run_id for queue in queues for run_id in backlog.oldest(queue, FIRST, BATCH)}
    return list(lapsed.exclude(pk__in=waiting)[: max(BATCH - len(waiting), 0)]) if queues else []


def _missing_in_memory(queued: RunQuerySet, queue: str, priority: int) -> list[tuple[AgentRun, int]]:
    """Return the first runs that the queue of this process does not hold, up to its free capacity."""
    held = backlog.oldest(queue, priority, BATCH)
    room = max(BATCH - len(held), 0)
    missing = list(queued.exclude(pk__in=held)[: room + 1])
    wake.leave_to_sweep(queue, priority, len(missing) > room)
    return [(run, priority) for run in missing[:room]]


def _lost_from_redis(queued: RunQuerySet, queue: str, priority: int) -> list[tuple[AgentRun, int]]:
    """Return the first runs whose messages were lost. Marks them as sent now, so that another sweep leaves them out.

    Their new messages come before those in the queue, because the queued messages are younger.
    """
    head = backlog.oldest(queue, priority, HEAD)
    before = _sent_before(queued, head)
    if before is None:
        return []
    lost = AgentRun.objects.annotate(sent_at=SENT_AT).filter(status=RunStatus.QUEUED, sent_at__lt=before)
    runs = queued.annotate(sent_at=SENT_AT).filter(sent_at__lt=before)[:BATCH]
    return [
        (run, priority - 1 if head else priority)
        for run in runs
        if lost.filter(pk=run.pk).update(message_sent_at=Now())
    ]


def _sent_before(queued: RunQuerySet, head: list[UUID]) -> datetime | None:
    """Return the time before which a message must have been sent to be lost, because the queue holds only younger ones.

    None if unknown, because no message at the head names a queued run. All times are the database's.
    """
    latest = database_clock.now() - timedelta(seconds=ON_ITS_WAY_S)
    if not head:
        return latest
    oldest: datetime | None = queued.filter(pk__in=head).aggregate(at=Min(SENT_AT))["at"]
    return None if oldest is None else min(oldest, latest)
