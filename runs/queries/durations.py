"""The duration and the waiting time of a run.

The duration is the time for which workers held the run, taken from its attempts. The attempt of a lost worker ends with
its last event, not when the loss was noticed. The time between attempts is waiting time: for a cooldown, an answer, an
outcome, a resume or a free worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from django.db.models import DurationField, ExpressionWrapper, F, OuterRef, QuerySet, Subquery, Sum

from runs.models import AgentRun, Attempt
from runs.statuses import RunStatus

Runs = TypeVar("Runs", bound=QuerySet[AgentRun])
#: The total duration of the ended attempts, and the start of the open one: `worked_time`, `open_since`.
Holds = tuple[timedelta | None, datetime | None]


@dataclass(frozen=True)
class Times:
    """The times of a started run."""

    worked_s: float
    waited_s: float
    #: For a running run: the duration is the time since then. None for other runs, whose clocks may differ.
    counts_from: datetime | None


class TimedRun(Protocol):
    """The fields of a run that its times depend on, besides its attempts and its last event."""

    @property
    def state(self) -> RunStatus: ...
    @property
    def started_at(self) -> datetime | None: ...
    @property
    def completed_at(self) -> datetime | None: ...


def with_times(runs: Runs) -> Runs:
    """Annotate runs with the values that `times_of` needs besides the run and its log."""
    attempts = Attempt.objects.filter(run=OuterRef("pk")).order_by()
    hold = ExpressionWrapper(F("ended_at") - F("claimed_at"), output_field=DurationField())
    ended = attempts.filter(ended_at__isnull=False).values("run").annotate(time=Sum(hold)).values("time")
    open_attempts = attempts.filter(ended_at=None).values("claimed_at")
    return runs.annotate(worked_time=Subquery(ended), open_since=Subquery(open_attempts[:1]))


def times_of(run: AgentRun, now: datetime) -> Times | None:
    """Return the times of a run, or None if it has not started. Without `with_times`, this costs a query."""
    if run.started_at is None:
        return None
    # The duration of a running run does not need the last event, so its log is not read.
    last_event_at = None if run.state is RunStatus.RUNNING else run.log.last_event_at
    return times_between(run, last_event_at, _holds(run), now)


def times_between(run: TimedRun, last_event_at: datetime | None, holds: Holds, now: datetime) -> Times | None:
    """Return the times of a run, or None if it has not started."""
    worked_time, open_since = holds
    is_running = run.state is RunStatus.RUNNING
    end = now if is_running else run.completed_at or last_event_at
    if run.started_at is None or end is None:
        return None
    if worked_time is None and open_since is None:
        # An external run has no attempts: only its start and its last event are known.
        return _times(end - run.started_at, timedelta(0), now if is_running else None)
    worked = worked_time or timedelta(0)
    if open_since is not None:
        worked += max(end - open_since, timedelta(0))
    waited = (run.completed_at or now) - run.started_at - worked
    return _times(worked, waited, now if is_running else None)


def _holds(run: Any) -> Holds:
    if hasattr(run, "worked_time"):
        return run.worked_time, run.open_since
    # Called at the end of each run. Building this query takes a fraction of the time of `with_times`.
    held = list(Attempt.objects.filter(run=run.pk).order_by().values_list("claimed_at", "ended_at"))
    ended = [end - begin for begin, end in held if end is not None]
    open_since = [begin for begin, end in held if end is None]
    return sum(ended, timedelta(0)) if ended else None, open_since[0] if open_since else None


def _times(worked: timedelta, waited: timedelta, now: datetime | None) -> Times:
    """Return the times of a run. `now`: the current time for a running run."""
    zero = timedelta(0)
    counts_from = None if now is None else now - worked
    return Times(max(worked, zero).total_seconds(), max(waited, zero).total_seconds(), counts_from)
