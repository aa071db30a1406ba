"""A run as the list reads it: the columns of a row, without model instances, which take longer to create."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Count, F, OuterRef, Subquery
from django.db.models.functions import Coalesce

from runs.models import AgentRun
from runs.models.querysets import RunQuerySet
from runs.queries.durations import with_times
from runs.statuses import RunStatus


class ListedRun(NamedTuple):
    """The columns of a row. The fields are columns and annotations of the query."""

    pk: UUID
    title: str
    summary_start: str
    agent_name: str | None
    status: str
    status_reason: str
    source: str
    labels: list[str]
    resumed_from_id: UUID | None
    parent_run_id: UUID | None
    step_base: int
    step_count: int
    max_steps: int
    input_tokens: int
    output_tokens: int
    cost_usd: Decimal | None
    unpriced_calls: int
    cost_source: str
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    last_event_at: datetime | None
    worked_time: timedelta | None
    open_since: datetime | None
    child_count: int

    @property
    def state(self) -> RunStatus:
        """The status as a member of `RunStatus`."""
        return RunStatus(self.status)


def listed_runs() -> RunQuerySet:
    """Return the query of all runs, newest first. Its rows are read by `read`."""
    # A copy: Django's result cache must not be shared.
    return _listed_runs().all()


def read(runs: RunQuerySet) -> list[ListedRun]:
    """Return the rows of `listed_runs`, filtered. One query."""
    rows: Iterable[Any] = runs
    return [ListedRun(*row) for row in rows]


@cache
def _listed_runs() -> RunQuerySet:
    """Build the query once per process: building it takes longer than running it."""
    children = AgentRun.objects.filter(parent_run=OuterRef("pk")).order_by().values("parent_run")
    runs = with_times(AgentRun.objects.all().for_list()).annotate(
        last_event_at=F("log__last_event_at"),
        child_count=Coalesce(Subquery(children.annotate(n=Count("pk")).values("n")), 0),
    )
    return runs.newest_first().values_list(*ListedRun._fields)  # type: ignore[return-value]
