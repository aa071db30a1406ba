"""Sums for a project: its ended runs (outcomes, durations, tokens and cost), its flow runs, the use of its daily
budgets, and an estimate of what a retention period would delete now.

One query reads the newest ended runs by the index `run_retention`, at most `MAX_RUNS`, so that its cost does not grow
with the project. The sums of ended runs are computed from these rows. A run counts when it ends, with all its tokens
and its whole cost.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from django.db.models import Avg, Count, Q, QuerySet, Sum, TextField
from django.db.models.fields.json import KT
from django.db.models.functions import Cast, Length

from agentops.accounts.models import Project
from agentops.base import database_clock
from runs.models import AgentRun, FlowRun, TurnUsage
from runs.queries.durations import with_times
from runs.queries.json_columns import EPOCH
from runs.statuses import RunStatus
from timeline.models import Event

#: Maximum number of newest ended runs to read.
MAX_RUNS = 10_000
#: The statuses of runs whose durations and failure rate count.
_TRIED = (RunStatus.COMPLETED, RunStatus.FAILED)
Key = TypeVar("Key", bound=Hashable)


class EndedRun(NamedTuple):
    """The columns of an ended run from which the sums are computed."""

    completed_at: datetime
    status: str
    agent_id: UUID | None
    input_tokens: int
    output_tokens: int
    cost_usd: Decimal | None
    unpriced_calls: int
    started_at: datetime | None
    worked_time: timedelta | None
    #: The name of the agent, as recorded in the run.
    agent_name: str | None = None

    @property
    def duration_s(self) -> float | None:
        """Return the time with workers or, for an external run, from its start to its end. None if it never started."""
        if self.worked_time is not None:
            return self.worked_time.total_seconds()
        if self.started_at is None:
            return None
        return database_clock.seconds_between(self.started_at, self.completed_at)


@dataclass
class Sums:
    """The sums of a group of ended runs."""

    #: Status → number of runs.
    by_status: dict[str, int] = field(default_factory=dict)
    #: Durations of completed and failed runs, in seconds, without waits.
    durations_s: list[float] = field(default_factory=list)
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: Decimal = Decimal(0)
    #: The number of runs with tokens.
    with_tokens: int = 0
    #: The number of runs with tokens and an unknown cost.
    unpriced: int = 0
    #: Model calls with unknown cost, which `cost_usd` does not include.
    unpriced_calls: int = 0

    @property
    def total(self) -> int:
        return sum(self.by_status.values())

    @property
    def completed(self) -> int:
        return self.by_status.get(RunStatus.COMPLETED, 0)

    @property
    def failed(self) -> int:
        return self.by_status.get(RunStatus.FAILED, 0)

    @property
    def failure_rate(self) -> float | None:
        """Return failed / (completed + failed), from 0 to 1; None without such runs."""
        tried = self.completed + self.failed
        return self.failed / tried if tried else None

    def percentile_s(self, share: float) -> float | None:
        """Return the percentile of the durations by nearest rank: `percentile_s(0.95)`. None without durations."""
        if not self.durations_s:
            return None
        rank = -(-len(self.durations_s) * share // 1)  # rounded up
        return sorted(self.durations_s)[max(int(rank), 1) - 1]

    def add(self, run: EndedRun) -> None:
        self.by_status[run.status] = self.by_status.get(run.status, 0) + 1
        if run.status in _TRIED and (duration := run.duration_s) is not None:
            self.durations_s.append(duration)
        self.input_tokens += run.input_tokens
        self.output_tokens += run.output_tokens
        self.cost_usd += run.cost_usd or 0
        self.unpriced_calls += run.unpriced_calls
        if run.input_tokens or run.output_tokens:
            self.with_tokens += 1
            self.unpriced += run.cost_usd is None
            # A runner may report a run's tokens without its calls.
            self.unpriced_calls += run.cost_usd is None and not run.unpriced_calls


def ended_since(project: Project, since: datetime) -> list[EndedRun]:
    """Return the runs that ended since a time, the newest first, at most `MAX_RUNS`. One query."""
    runs = AgentRun.objects.filter(project=project, completed_at__isnull=False, completed_at__gte=since)
    named = with_times(runs).annotate(agent_name=KT("agent_config__agent_id"))
    rows = named.order_by("-completed_at", "-pk").values_list(*EndedRun._fields)
    return [EndedRun(*row) for row in rows[:MAX_RUNS]]


def sums_of(runs: Iterable[EndedRun]) -> Sums:
    """Return the sums of these runs."""
    sums = Sums()
    for run in runs:
        sums.add(run)
    return sums


def sums_by(runs: Iterable[EndedRun], key: Callable[[EndedRun], Key]) -> dict[Key, Sums]:
    """Return the sums of each group of runs with the same `key`."""
    groups: dict[Key, Sums] = {}
    for run in runs:
        groups.setdefault(key(run), Sums()).add(run)
    return groups


def period_of(at: datetime, size: timedelta) -> datetime:
    """Return the start of the period of this size that contains a time. Periods are counted from 1970."""
    return at - (at - EPOCH) % size


def unended_by_status(project: Project) -> Mapping[str, int]:
    """Return the number of flow runs that have not ended, by status. One query, by the index `flow_run_unended`."""
    rows = FlowRun.objects.filter(project=project, completed_at=None).values_list("status")
    return dict(rows.annotate(number=Count("pk")).order_by())


def ended_by_flow(project: Project, since: datetime) -> Mapping[str, Sums]:
    """Return the flow runs that ended since a time, by the name of the flow ("" for deleted flows).

    One query, by the index `flow_run_retention`. Only `by_status` is set: tokens, cost and durations belong to the runs
    of the nodes.
    """
    ended = FlowRun.objects.filter(project=project, completed_at__isnull=False, completed_at__gte=since)
    sums: dict[str, Sums] = {}
    for slug, status, number in ended.values_list("flow__slug", "status").annotate(number=Count("pk")).order_by():
        sums.setdefault(slug or "", Sums()).by_status[status] = number
    return sums


_ACTIVE = [status for status in RunStatus if not status.terminal]


def used_since(project_id: UUID, moment: datetime) -> tuple[int, Decimal]:
    """Return the tokens and the cost of the native model calls of a project since `moment`. One query.

    It reads runs that have not ended, or that ended after `moment`. Both conditions have an index.
    """
    native_runs = AgentRun.objects.filter(project=project_id, source=AgentRun.Source.NATIVE)
    runs = native_runs.filter(Q(status__in=_ACTIVE) | Q(completed_at__isnull=False, completed_at__gte=moment))
    turns = TurnUsage.objects.filter(run__in=runs.values("pk"), created_at__gte=moment)
    sums = turns.aggregate(sent=Sum("input_tokens"), received=Sum("output_tokens"), cost=Sum("cost_usd"))
    return (sums["sent"] or 0) + (sums["received"] or 0), sums["cost"] or Decimal(0)


#: Maximum number of runs to count in an estimate.
MAX_COUNTED = 10_000
#: Maximum number of events whose sizes are measured.
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


def estimate_deletions(project: Project, days: int) -> RetentionEstimate:
    """Return what a retention of `days` days would delete now. Held runs are not included. At most seven queries."""
    before = database_clock.now() - timedelta(days=days)
    runs_of_project = AgentRun.objects.filter(project=project, held_at=None)
    old = runs_of_project.ended_before(before).order_by("completed_at", "pk")
    left = runs_of_project.left_before(before).order_by("created_at", "pk")
    old_flow_runs = FlowRun.objects.filter(project=project, completed_at__lt=before).order_by("completed_at", "pk")
    counts = [_totals_of_deletion(rows) for rows in (old, left, old_flow_runs)]
    total, events = (sum(each) for each in zip(*counts, strict=True))
    return RetentionEstimate(
        runs=min(total, MAX_COUNTED),
        is_more=total > MAX_COUNTED,
        events=events,
        size=int(events * _event_size([*_first_ids(old), *_first_ids(left)])) if events else 0,
        oldest=old.values_list("completed_at", flat=True).first(),
    )


def _totals_of_deletion(rows: QuerySet[Any]) -> tuple[int, int]:
    """Return the number of runs, at most `MAX_COUNTED` + 1, and the number of their events."""
    page = rows.values("pk", "log__last_seq")[: MAX_COUNTED + 1]
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
