"""The queues of the site: what waits for workers, since when, and which workers are at work. For metrics and pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from django.db.models import Count, Min

from runs.models import AgentRun, WorkerProcess
from runs.statuses import RunStatus
from timeline.database_clock import Now


def oldest_queued() -> datetime | None:
    """Return since when the oldest queued run has waited for a worker."""
    queued = AgentRun.objects.filter(status=RunStatus.QUEUED, source=AgentRun.Source.NATIVE)
    oldest: datetime | None = queued.aggregate(oldest=Min("queued_at"))["oldest"]
    return oldest


def oldest_due_wait() -> datetime | None:
    """Return since when the oldest wait that has ended is due. A worker ends such waits within seconds."""
    return AgentRun.objects.due_waits().values_list("not_before", flat=True).first()


def lapsed_count() -> int:
    """Return the number of running runs whose worker no longer renews its lease."""
    return AgentRun.objects.filter(status=RunStatus.RUNNING, lease_expires_at__lt=Now()).count()


def working_workers() -> Counter[str]:
    """Return the workers with a valid lease, and the number of their runs."""
    held = AgentRun.objects.filter(status=RunStatus.RUNNING, source=AgentRun.Source.NATIVE, lease_expires_at__gte=Now())
    rows = held.order_by().values_list("lease_owner").annotate(number=Count("pk"))
    return Counter({owner or "": number for owner, number in rows})


def queued_counts() -> dict[str, int]:
    """Return the number of queued runs of each queue that has any, with those that wait for a place."""
    rows = AgentRun.objects.native().filter(status=RunStatus.QUEUED).order_by("queue").values_list("queue")
    return dict(rows.annotate(number=Count("pk")))


def unserved(queues: Iterable[str]) -> frozenset[str]:
    """Return those of these queues that no worker serves; none while no worker is at work at all. One query."""
    served = WorkerProcess.objects.served_queues()
    return frozenset(queues) - served if served else frozenset()
