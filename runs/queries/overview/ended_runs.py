"""Sums of the runs of a project that have ended since a time: outcomes, durations, tokens and cost.

One query reads the newest ended runs by the index `run_retention`, at most `MAX_RUNS`, so that its cost does not grow
with the project. All sums are computed from these rows. A run counts when it ends, with all its tokens and its whole
cost.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import NamedTuple, TypeVar
from uuid import UUID

from django.db.models.fields.json import KT

from agentops.accounts.models import Project
from agentops.base import database_clock
from runs.models import AgentRun
from runs.queries.durations import with_times
from runs.statuses import RunStatus

#: Maximum number of newest ended runs to read.
MAX_RUNS = 10_000
#: Time buckets start at multiples of their size after this time.
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TRIED = (RunStatus.COMPLETED, RunStatus.FAILED)
_COLUMNS = (
    *("completed_at", "status", "agent_id", "input_tokens", "output_tokens", "cost_usd"),
    "unpriced_calls",
    *("started_at", "worked_time", "agent_name"),
)
Key = TypeVar("Key", bound=Hashable)


class EndedRun(NamedTuple):
    """The columns of a run that are added up."""

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
    #: Number of runs with tokens, and how many of these have an unknown cost.
    with_tokens: int = 0
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
        """Return the smallest duration that at least this share of the durations does not exceed."""
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
    rows = named.order_by("-completed_at", "-pk").values_list(*_COLUMNS)
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
    """Return the start of the period that contains a time."""
    return at - (at - EPOCH) % size
