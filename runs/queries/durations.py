"""How long workers had a run, apart from how long it waited: its duration, and its waits.

The evidence are the attempts: one for each hold of a worker, which ends
with the last event of a worker that was lost, not when its loss was noticed. What lies between holds is waiting: for
a cooldown, an answer, an outcome, a resume, or a place in the queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.db.models import DurationField, ExpressionWrapper, F, OuterRef, QuerySet, Subquery, Sum

from runs.models import AgentRun, Attempt
from runs.statuses import RunStatus

Runs = TypeVar("Runs", bound=QuerySet[AgentRun])


@dataclass(frozen=True)
class Times:
    """Of a run that has started, in seconds."""

    worked_s: float
    waited_s: float
    #: From when a clock counts on that shows the duration of a running run.
    counts_from: datetime


def with_times(runs: Runs) -> Runs:
    """Runs with what `times_of` needs besides their own row and their log."""
    attempts = Attempt.objects.filter(run=OuterRef("pk")).order_by()
    hold = ExpressionWrapper(F("ended_at") - F("claimed_at"), output_field=DurationField())
    ended = attempts.filter(ended_at__isnull=False).values("run").annotate(time=Sum(hold)).values("time")
    held = attempts.filter(ended_at=None).values("claimed_at")
    return runs.annotate(held_for=Subquery(ended), held_since=Subquery(held[:1]))


def times_of(run: AgentRun, now: datetime) -> Times | None:
    """The times of a run; None of one that has not started. One that `with_times` has not loaded costs a query."""
    last = run.completed_at or run.log.last_event_at
    if run.started_at is None or last is None:
        return None
    held_for, held_since = _holds(run)
    end = now if run.state is RunStatus.RUNNING else last
    if held_for is None and held_since is None:
        # Nobody here holds it: all that is known is when it began and when it was last heard of.
        return _times(end - run.started_at, timedelta(0), now)
    worked = held_for or timedelta(0)
    if held_since is not None:
        worked += max(end - held_since, timedelta(0))
    return _times(worked, (run.completed_at or now) - run.started_at - worked, now)


def _holds(run: Any) -> tuple[timedelta | None, datetime | None]:
    """The sum of the holds that ended, and the begin of the one that has not."""
    if not hasattr(run, "held_for"):
        run = with_times(AgentRun.objects.filter(pk=run.pk)).only("pk").get()
    return run.held_for, run.held_since


def _times(worked: timedelta, waited: timedelta, now: datetime) -> Times:
    zero = timedelta(0)
    return Times(max(worked, zero).total_seconds(), max(waited, zero).total_seconds(), now - worked)
