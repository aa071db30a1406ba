"""How long runs waited for their next worker after a worker died, in the last 24 hours. For metrics and pages."""

from __future__ import annotations

from datetime import timedelta
from statistics import median
from typing import NamedTuple

from django.db.models import Max, OuterRef, Subquery

from agentops.base import database_clock
from agentops.base.database_clock import Now
from runs.models import Attempt
from runs.statuses import DEATHS

DAY = timedelta(days=1)
#: The newest attempts of the site to read, and the newest deaths among them. Deaths have no index, because it would
#: cost each release of a run a write.
NEWEST, MAX_DEATHS = 20_000, 1000


class RecoveryTimes(NamedTuple):
    """Seconds from the last sign of life of dead workers until the next claims of their runs."""

    runs: int
    median_s: float
    worst_s: float


def of_last_day() -> RecoveryTimes | None:
    """Return the times of the last 24 hours, as far as the newest attempts go back; None if no worker died.

    Runs that no worker has taken over yet are not counted.
    """
    newest = Attempt.objects.aggregate(newest=Max("pk"))["newest"] or 0
    later = Attempt.objects.filter(run=OuterRef("run"), epoch__gt=OuterRef("epoch")).order_by("epoch")
    deaths = Attempt.objects.filter(pk__gt=newest - NEWEST, end_reason__in=DEATHS, ended_at__gte=Now() - DAY)
    rows = deaths.annotate(next_at=Subquery(later.values("claimed_at")[:1])).order_by("-pk")
    pairs = rows.values_list("ended_at", "next_at")[:MAX_DEATHS]
    waits = [database_clock.seconds_between(ended_at, next_at) for ended_at, next_at in pairs if ended_at and next_at]
    return RecoveryTimes(len(waits), median(waits), max(waits)) if waits else None
