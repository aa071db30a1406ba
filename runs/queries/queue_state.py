"""The queues of the site, for metrics and pages: the waiting runs, their waiting times, and the active workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from django.db.models import Count, Min, OuterRef, Subquery, TextField
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce

from agentops.base.database_clock import Now
from runs.models import AgentRun, Attempt, Chore, WorkerProcess
from runs.models.querysets import RunQuerySet
from runs.statuses import RunStatus

#: The name of the sweep among the periodic jobs. With Redis, its claim has the time of the last sweep.
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
    """Return since when the oldest queued run has waited for a worker."""
    queued = AgentRun.objects.filter(status=RunStatus.QUEUED, source=AgentRun.Source.NATIVE)
    oldest: datetime | None = queued.aggregate(oldest=Min("queued_at"))["oldest"]
    return oldest


def oldest_due_wait() -> datetime | None:
    """Return the due time of the oldest wait that is over. A worker ends such waits within seconds."""
    return AgentRun.objects.due_waits().values_list("not_before", flat=True).first()


def lapsed_count() -> int:
    """Return the number of running runs whose worker no longer renews its lease."""
    return AgentRun.objects.filter(status=RunStatus.RUNNING, lease_expires_at__lt=Now()).count()


def working_workers() -> Counter[str]:
    """Return the workers with a valid lease, and the number of their runs."""
    rows = _held().order_by().values_list("lease_owner").annotate(number=Count("pk"))
    return Counter({owner or "": number for owner, number in rows})


def active_slices(at_most: int) -> list[ActiveSlice]:
    """Return the first runs that workers execute, the oldest claims first."""
    own = Attempt.objects.filter(run=OuterRef("pk"), epoch=OuterRef("lease_epoch")).values("claimed_at")
    name = Coalesce("agent__slug", KT("agent_config__agent_id"), output_field=TextField())
    rows = _held().annotate(since=Subquery(own), agent_name=name).order_by("since", "pk")[:at_most]
    columns = ("pk", "project__slug", "agent_name", "lease_owner", "step_count", "since")
    return [
        ActiveSlice(run_id, project, agent, worker or "", steps + 1, since)
        for run_id, project, agent, worker, steps, since in rows.values_list(*columns)
    ]


def _held() -> RunQuerySet:
    return AgentRun.objects.running().filter(lease_expires_at__gte=Now())


def last_sweep() -> datetime | None:
    """Return when a worker last started the sweep; None if no worker did. Without Redis nothing is stored."""
    return Chore.objects.filter(name=SWEEP).values_list("taken_at", flat=True).first()


def without_place() -> Counter[str]:
    """Return the number of queued runs that wait for a place, by project and agent, such as `shop/researcher`."""
    rows = AgentRun.objects.without_place().order_by().values_list("project__slug", "agent__slug")
    return Counter({"/".join(filter(None, names)): number for *names, number in rows.annotate(number=Count("pk"))})


def queued_counts() -> dict[str, int]:
    """Return the number of queued runs of each non-empty queue, including runs that wait for a place."""
    rows = AgentRun.objects.native().filter(status=RunStatus.QUEUED).order_by("queue").values_list("queue")
    return dict(rows.annotate(number=Count("pk")))


def unserved(queues: Iterable[str]) -> frozenset[str]:
    """Return the queues that no worker serves; none if the site has no active worker. One query."""
    served = WorkerProcess.objects.served_queues()
    return frozenset(queues) - served if served else frozenset()
