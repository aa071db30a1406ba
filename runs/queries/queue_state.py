"""The queues of the site, for metrics and pages: the waiting runs and their waiting times, the active workers, the
messages waiting in Redis, and how long runs waited for their next worker after a worker died, in the last 24 hours.

A read of Redis takes at most one second. Without Redis, the queues are in the memory of each worker, and other
processes cannot count them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TimedOut
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import NamedTuple
from uuid import UUID

from django.db.models import Count, Max, Min, OuterRef, Subquery, TextField
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce
from django.utils.module_loading import import_string

from agentops.base import database_clock, task_messages
from agentops.base.backing_services import UPKEEP
from agentops.base.database_clock import Now
from runs.models import Agent, AgentRun, Attempt, Chore, WorkerProcess
from runs.models.querysets import RunQuerySet
from runs.models.workers import process_name
from runs.statuses import DEATHS, RunStatus

#: The name of the sweep among the periodic jobs (`Chore`). With Redis, `taken_at` is the time of the last sweep.
SWEEP = "sweep"
#: When the last message of a queued run was sent.
SENT_AT = Coalesce("message_sent_at", "queued_at")


class ActiveSlice(NamedTuple):
    """A run that a worker is executing."""

    run_id: UUID
    project: str
    agent: str | None
    worker: str
    #: The step in progress.
    step: int
    #: When the worker took the run.
    since: datetime | None


def oldest_queued() -> datetime | None:
    """Return since when the oldest queued run waits for a worker of this site; None without queued runs."""
    queued = AgentRun.objects.native().of_workers().filter(status=RunStatus.QUEUED)
    oldest: datetime | None = queued.aggregate(oldest=Min("queued_at"))["oldest"]
    return oldest


def oldest_due_wait() -> datetime | None:
    """Return the due time of the oldest overdue wait, or None. A worker ends a due wait within seconds."""
    return AgentRun.objects.due_waits().values_list("not_before", flat=True).first()


def lapsed_count() -> int:
    """Return the number of running runs whose worker no longer renews its lease."""
    return AgentRun.objects.filter(status=RunStatus.RUNNING, lease_expires_at__lt=Now()).count()


def working_workers() -> Counter[str]:
    """Return how many runs each worker of this site holds with a valid lease, by the name of the worker."""
    rows = _held().of_workers().order_by().values_list("lease_owner").annotate(number=Count("pk"))
    return Counter({owner or "": number for owner, number in rows})


def active_slices(at_most: int) -> list[ActiveSlice]:
    """Return up to `at_most` runs that workers execute, the oldest claims first."""
    own = Attempt.objects.filter(run=OuterRef("pk"), epoch=OuterRef("lease_epoch")).values("claimed_at")
    name = Coalesce("agent__slug", KT("agent_config__agent_id"), output_field=TextField())
    rows = _held().annotate(since=Subquery(own), agent_name=name).order_by("since", "pk")[:at_most]
    columns = ("pk", "project__slug", "agent_name", "lease_owner", "step_count", "since")
    return [
        ActiveSlice(run_id, project, agent, process_name(worker or ""), steps + 1, since)
        for run_id, project, agent, worker, steps, since in rows.values_list(*columns)
    ]


def _held() -> RunQuerySet:
    return AgentRun.objects.running().filter(lease_expires_at__gte=Now())


def last_sweep() -> datetime | None:
    """Return when a worker last started the sweep; None if no worker did, and always without Redis."""
    return Chore.objects.filter(name=SWEEP).values_list("taken_at", flat=True).first()


def without_place() -> Counter[str]:
    """Return the number of queued runs whose agent or project has reached its limit of running runs.

    By project and agent, such as `shop/researcher`.
    """
    rows = AgentRun.objects.without_place().order_by().values_list("project__slug", "agent__slug")
    return Counter({"/".join(filter(None, names)): number for *names, number in rows.annotate(number=Count("pk"))})


def queued_counts() -> dict[str, int]:
    """Return the number of queued runs of each non-empty queue, including runs that `without_place` counts.

    Remote runs are left out: no worker of this site takes them.
    """
    rows = AgentRun.objects.native().of_workers().filter(status=RunStatus.QUEUED).order_by("queue").values_list("queue")
    return dict(rows.annotate(number=Count("pk")))


def unserved(queues: Iterable[str]) -> frozenset[str]:
    """Return the `queues` that no active worker serves. One query.

    Empty if no worker is active at all: then no queue is an exception.
    """
    served = WorkerProcess.objects.served_queues()
    return frozenset(queues) - served if served else frozenset()


log = logging.getLogger(__name__)
#: Seconds after which Redis counts as not answering.
WITHIN_S = 1.0
#: Maximum number of queues whose messages are counted, in the order of their names.
MAX_QUEUES = 100
#: Oldest messages of each queue and priority to inspect. Some may name runs that are no longer queued.
HEAD = 20
#: Maximum number of these messages in total.
MAX_HEADS = 900
#: One thread: while Redis hangs, other readers wait for it and time out, and no threads accumulate.
_thread = ThreadPoolExecutor(1, thread_name_prefix="backlog")


@dataclass(frozen=True, slots=True)
class BrokerState:
    """The messages in Redis."""

    #: Messages by queue and priority, for each queue of the site, including empty queues.
    lengths: Mapping[str, Mapping[int, int]]
    #: When the oldest message of a run that is still queued was sent, by the database's clock.
    oldest_sent_at: datetime | None


def read_broker() -> BrokerState | None:
    """Return the waiting messages; None if Redis did not answer within `WITHIN_S`. At most three queries."""
    # Before the time limit starts: the first import of Celery in a process takes half a second.
    import_string(task_messages.CELERY_APP)
    future = _thread.submit(_read, _queues())
    try:
        lengths, heads = future.result(WITHIN_S)
    except TimedOut:
        future.cancel()
        return None
    except Exception as error:  # a broken broker can raise any exception
        log.warning("the queues in Redis cannot be read: %s", type(error).__name__)
        return None
    return BrokerState(lengths, _oldest_sent_at(heads) if heads else None)


def _queues() -> list[str]:
    """Return the queues that an agent, a run or a living worker names, and the upkeep queue."""
    of_runs = AgentRun.objects.claimable().order_by().values_list("queue", flat=True)
    named = set(Agent.objects.order_by().values_list("queue", flat=True).union(of_runs))
    return [*sorted(named | WorkerProcess.objects.served_queues())[:MAX_QUEUES], UPKEEP]


def _read(queues: Iterable[str]) -> tuple[dict[str, dict[int, int]], list[UUID]]:
    lengths = {queue: task_messages.lengths(queue) for queue in queues}
    # Upkeep messages name no runs.
    parts = [(queue, priority) for queue in lengths if queue != UPKEEP for priority in lengths[queue]]
    heads = [run_id for part in parts for run_id in task_messages.oldest(*part, HEAD)]
    return lengths, heads[:MAX_HEADS]


def _oldest_sent_at(heads: list[UUID]) -> datetime | None:
    queued = AgentRun.objects.native().filter(pk__in=heads, status=RunStatus.QUEUED)
    oldest: datetime | None = queued.aggregate(at=Min(SENT_AT))["at"]
    return oldest


DAY = timedelta(days=1)
#: Number of the newest attempts that are searched for deaths of workers. Deaths have no index, because each
#: release of a run would have to write to it.
MAX_ATTEMPTS = 20_000
#: Maximum number of deaths to read, newest first.
MAX_DEATHS = 1000


class RecoveryTimes(NamedTuple):
    """Seconds from the last sign of life of dead workers until the next claims of their runs."""

    runs: int
    median_s: float
    worst_s: float


def recoveries_of_last_day() -> RecoveryTimes | None:
    """Return the times of the last 24 hours, as far as the newest attempts go back; None if no worker died.

    Runs that no worker has taken over yet are not counted.
    """
    newest = Attempt.objects.aggregate(newest=Max("pk"))["newest"] or 0
    later = Attempt.objects.filter(run=OuterRef("run"), epoch__gt=OuterRef("epoch")).order_by("epoch")
    deaths = Attempt.objects.filter(pk__gt=newest - MAX_ATTEMPTS, end_reason__in=DEATHS, ended_at__gte=Now() - DAY)
    rows = deaths.annotate(next_at=Subquery(later.values("claimed_at")[:1])).order_by("-pk")
    pairs = rows.values_list("ended_at", "next_at")[:MAX_DEATHS]
    waits = [database_clock.seconds_between(ended_at, next_at) for ended_at, next_at in pairs if ended_at and next_at]
    return RecoveryTimes(len(waits), median(waits), max(waits)) if waits else None
