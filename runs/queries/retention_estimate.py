"""An estimate of the deletions of a retention period if it applied now, with few bounded queries."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Avg, Count, QuerySet, Sum, TextField
from django.db.models.functions import Cast, Length

from agentops.accounts.models import Project
from agentops.base import database_clock
from runs.models import AgentRun, FlowRun
from timeline.models import Event

#: Maximum number of runs to count.
MAX_RUNS = 10_000
#: Events whose size is measured.
SAMPLE = 500


@dataclass(frozen=True)
class RetentionEstimate:
    """An upper bound of the deletions. It includes runs that are kept because newer or held runs need them."""

    runs: int
    #: Whether there are more runs than `runs`; `events` and `size` do not include these.
    is_more: bool
    events: int
    #: Bytes of the events' payloads, from the average of a sample.
    size: int
    #: When the oldest of these runs ended.
    oldest: datetime | None


def estimate(project: Project, days: int) -> RetentionEstimate:
    """Return the estimate for a retention of `days` days, without runs on hold. At most seven queries."""
    before = database_clock.now() - timedelta(days=days)
    runs_of_project = AgentRun.objects.filter(project=project, held_at=None)
    old = runs_of_project.ended_before(before).order_by("completed_at", "pk")
    left = runs_of_project.left_before(before).order_by("created_at", "pk")
    old_flow_runs = FlowRun.objects.filter(project=project, completed_at__lt=before).order_by("completed_at", "pk")
    counts = [_totals(rows) for rows in (old, left, old_flow_runs)]
    total, events = (sum(each) for each in zip(*counts, strict=True))
    oldest = old.values_list("completed_at", flat=True).first()
    return RetentionEstimate(
        runs=min(total, MAX_RUNS),
        is_more=total > MAX_RUNS,
        events=events,
        size=int(events * _event_size([*_first_ids(old), *_first_ids(left)])) if events else 0,
        oldest=oldest,
    )


def _totals(rows: QuerySet[Any]) -> tuple[int, int]:
    """Return the number of runs, at most one more than `MAX_RUNS`, and of their events."""
    page = rows.values("pk", "log__last_seq")[: MAX_RUNS + 1]
    sums = page.aggregate(runs=Count("pk"), events=Sum("log__last_seq"))
    return sums["runs"], sums["events"] or 0


def _first_ids(rows: QuerySet[AgentRun]) -> list[UUID]:
    return list(rows.values_list("pk", flat=True)[:20])


def _event_size(ids: list[UUID]) -> float:
    """Return the average size of the first events of these runs, in bytes."""
    sample = (
        Event.objects.filter(log__in=ids).order_by("log", "seq").annotate(size=Length(Cast("payload", TextField())))
    )
    return float(sample.values("size")[:SAMPLE].aggregate(average=Avg("size"))["average"] or 0)
