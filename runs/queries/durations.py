"""The duration and the waiting time of a run, and the limit of running runs that a queued run waits for.

They are computed, not stored. The duration is the time for which workers held the run, from its attempts. The attempt
of a lost worker ends with its last event, not when the loss was noticed. The time between attempts is waiting time: for
a cooldown, an answer, an outcome, a resume or a free worker.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol, TypeVar
from uuid import UUID

from django.db.models import Count, DurationField, ExpressionWrapper, F, OuterRef, Q, QuerySet, Subquery, Sum

from runs.models import AgentRun, Attempt
from runs.statuses import RunStatus
from timeline.display import clean

Runs = TypeVar("Runs", bound=QuerySet[AgentRun])
#: `worked_time` and `open_since`: the total duration of the ended attempts, and the start of the open one.
Holds = tuple[timedelta | None, datetime | None]


@dataclass(frozen=True)
class Times:
    """The times of a started run."""

    worked_s: float
    waited_s: float
    #: For a running run, the time since when its duration counts up; otherwise None.
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
    zero = timedelta(0)
    if worked_time is None and open_since is None:
        # An external run has no attempts: only its start and its last event are known.
        worked, waited = end - run.started_at, zero
    else:
        worked = (worked_time or zero) + (max(end - open_since, zero) if open_since else zero)
        waited = (run.completed_at or now) - run.started_at - worked
    counts_from = now - worked if is_running else None
    return Times(max(worked, zero).total_seconds(), max(waited, zero).total_seconds(), counts_from)


def _holds(run: Any) -> Holds:
    """Return the values of `with_times`, from the run's annotations or else by a query."""
    if hasattr(run, "worked_time"):
        return run.worked_time, run.open_since
    # Called at the end of each run. Building this query takes a fraction of the time of `with_times`.
    held = list(Attempt.objects.filter(run=run.pk).order_by().values_list("claimed_at", "ended_at"))
    ended = [end - begin for begin, end in held if end is not None]
    open_since = [begin for begin, end in held if end is None]
    return sum(ended, timedelta(0)) if ended else None, open_since[0] if open_since else None


class PlaceWait(NamedTuple):
    """The wait of a queued run for a place: its agent or project has reached its limit of running runs."""

    #: What has the limit: "agent" or "project".
    kind: str
    name: str
    #: The limit.
    places: int

    def __str__(self) -> str:
        which = "the only place" if self.places == 1 else f"one of {self.places} places"
        return f"waits for {which} of {self.kind} {clean(self.name)}"


def place_waits(run_ids: Collection[UUID]) -> dict[UUID, PlaceWait]:
    """Return the waits of those runs that wait for a place, by run ID. One query; none without runs."""
    if not run_ids:
        return {}
    running = AgentRun.objects.running().filter(project=OuterRef("project")).order_by()
    of_agent = running.filter(agent=OuterRef("agent")).values("agent").annotate(number=Count("pk")).values("number")
    of_project = running.values("project").annotate(number=Count("pk")).values("number")
    has_limit = Q(agent__max_running__isnull=False) | Q(project__max_running__isnull=False)
    rows = AgentRun.objects.native().filter(has_limit, pk__in=run_ids, status=RunStatus.QUEUED)
    rows = rows.annotate(agent_count=Subquery(of_agent), project_count=Subquery(of_project))
    of_owners = [f"{kind}{column}" for kind in ("agent", "project") for column in ("__slug", "__max_running", "_count")]
    waits: dict[UUID, PlaceWait] = {}
    for run_id, *columns in rows.values_list("pk", *of_owners):
        for kind, (name, places, count) in (("agent", columns[:3]), ("project", columns[3:])):
            if places is not None and (count or 0) >= places:
                waits.setdefault(run_id, PlaceWait(kind, name, places))
    return waits
