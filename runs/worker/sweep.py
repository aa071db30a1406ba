"""The sweep: ends waits whose time has come, and sends the messages that are missing. It drives no run.

A message may be lost with its broker, or with the worker that had taken it. With Redis, one sweep per period is enough
for the whole site. Without, the queues are in the memory of each worker, and each fills its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db.models import Min

from agentops.broker import backlog
from agentops.broker.queues import FIRST
from runs import chaos
from runs.engine.policy import due_resumes
from runs.external.silence import notice_silence
from runs.lifecycle import approval_decisions, children, transitions, wake
from runs.models import AgentRun, Chore
from runs.models.querysets import RunQuerySet
from runs.queries.queue_state import SENT_AT, SWEEP
from runs.statuses import RunStatus
from timeline import database_clock
from timeline.database_clock import Now

#: Messages that one sweep sends at most, of runs of dead workers and for each priority of a queue.
BATCH = 500
#: The part of the period after which the next sweep may begin.
PART = 0.8
#: Messages at the head of a queue that are looked at. Some may name runs that are no longer queued.
HEAD = 20
#: Seconds for a message on its way between a process, Redis and a claim.
ON_ITS_WAY_S = 2.0


def sweep(*, now: bool = False) -> int:
    """End waits and send missing messages. Returns how many. Does nothing if another worker swept within the period.

    `now`: sweep in any case, because there is something to find.
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
    """Send a message for each run that a worker could claim and of which no queue holds a message. Returns how many."""
    if not wake.can_send():
        return 0
    count = sum(_send(run, first=True) for run in _taken_from_dead_workers())
    for runs in _queued_without_message():
        _mark_as_sent(runs)
        count += sum(_send(run) for run in runs)
    return count


def _send(run: AgentRun, *, first: bool = False) -> bool:
    chaos.point("sweep.run_seen")
    is_sent = wake.send(run, first=first)
    chaos.point("sweep.message_sent")
    return is_sent


def _taken_from_dead_workers() -> list[AgentRun]:
    lapsed = AgentRun.objects.runnable().filter(status=RunStatus.RUNNING)
    queues = set(lapsed.values_list("queue", flat=True))
    told: set[UUID] = {run_id for queue in queues for run_id in backlog.oldest(queue, FIRST, BATCH)}
    return list(lapsed.exclude(pk__in=told)[:BATCH]) if queues else []


def _queued_without_message() -> Iterator[list[AgentRun]]:
    queued = AgentRun.objects.runnable().filter(status=RunStatus.QUEUED)
    for queue, priority in queued.order_by("queue", "priority").values_list("queue", "priority").distinct():
        of_group = queued.filter(queue=queue, priority=priority)
        before = _sent_before(of_group, backlog.oldest(queue, priority + 1, HEAD))
        if before is not None:
            yield list(of_group.annotate(sent_at=SENT_AT).filter(sent_at__lt=before)[:BATCH])


def _sent_before(queued: RunQuerySet, head: list[UUID]) -> datetime | None:
    """Return the time before which a message must have been sent to be lost: the queue holds younger ones only.

    None: that cannot be said, because no message at the head names a run that is still queued. All times are the
    database's.
    """
    latest = database_clock.now() - timedelta(seconds=ON_ITS_WAY_S if settings.REDIS_URL else 0)
    if not head:
        return latest
    oldest: datetime | None = queued.filter(pk__in=head).aggregate(at=Min(SENT_AT))["at"]
    return None if oldest is None else min(oldest, latest)


def _mark_as_sent(runs: list[AgentRun]) -> None:
    AgentRun.objects.filter(status=RunStatus.QUEUED, pk__in=[run.pk for run in runs]).update(message_sent_at=Now())
