"""`…/agent-runs`, `…/agent-runs/{run}` and `…/agent-runs/{run}/children`: runs, as lists and one by one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar
from uuid import UUID

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request

from runs.api.base_views import ApiView, HotListView
from runs.api.requests.bodies import Choice, IdField
from runs.api.requests.pagination import Fetch, page_of
from runs.api.requests.queries import Choices, Cursor, FilterText, Limit, QuerySerializer, Text, Time
from runs.errors import RunNotFound
from runs.models import AgentRun
from runs.queries.json_lists import Where
from runs.queries.run_columns import (
    CHILDREN,
    RUN,
    RUNS,
    before,
    runs_of,
    since,
    with_agent,
    with_id,
    with_label,
    with_status,
)
from runs.queries.run_lists import filter_values
from runs.queries.run_lists.row_windows import Read, read_window, unindexed_conditions
from runs.queries.run_lists.run_filters import Filters
from runs.queries.searching.search import search_runs
from runs.statuses import RunStatus


class Statuses(Choices):
    """Any of these statuses of runs."""

    def __init__(self) -> None:
        super().__init__(
            choices=[status.value for status in RunStatus],
            required=False,
            help_text="Filter by status. Repeat the parameter or separate values with commas.",
            style={"example": ["paused", "failed"]},
        )


class UnindexedFilters(QuerySerializer):
    """The filters of the run list on the site that have no index."""

    root = Choice(
        choices=["1"],
        required=False,
        help_text="`1`: without child runs and runs that continue another run.",
    )
    reason = FilterText(
        filter_values.line,
        help_text="Filter by status reason or error type; case of A to Z is ignored.",
        style={"example": "rate_limited"},
    )
    cost_min = FilterText(filter_values.cost, help_text="Least cost in US dollars.", style={"example": "0.25"})
    cost_max = FilterText(filter_values.cost, help_text="Highest cost in US dollars.")
    duration_min = FilterText(
        filter_values.seconds, help_text="Least duration in whole seconds.", style={"example": "60"}
    )
    duration_max = FilterText(filter_values.seconds, help_text="Highest duration in whole seconds.")


class RunsQuery(UnindexedFilters):
    status = Statuses()
    agent_id = Text(help_text="Filter by agent name.", style={"example": "reviewer"})
    parent_run_id = IdField(required=False, help_text="Filter by parent run.")
    root_run_id = IdField(
        required=False, help_text="Filter by lineage: the run with this ID and all runs that continue it."
    )
    forked_from = IdField(required=False, help_text="Filter by the run that was forked.")
    source = Choice(choices=AgentRun.Source.values, required=False, help_text="Filter by source.")
    schedule_id = IdField(required=False, help_text="Filter by the schedule that started the run.")
    label = Text(help_text="Filter by label, exact match.", style={"example": "nightly"})
    created_after = Time(
        required=False, help_text="Runs created at this time or later.", style={"example": "2026-11-20T00:00:00Z"}
    )
    created_before = Time(
        required=False, help_text="Runs created before this time.", style={"example": "2026-11-21T00:00:00Z"}
    )
    q = Text(
        help_text="Search titles and messages for this text, literally; case of A to Z is ignored. "
        "A page looks through the next 500 runs at most, so it may be short or empty and still have a `next`.",
        style={"example": "rate limit"},
    )
    limit, cursor = Limit(), Cursor()


_UNINDEXED = [name for name in UnindexedFilters().fields if name != "root"]
#: Filters, and the SQL condition of each.
FILTERS: dict[str, Callable[[Where, Any], Where]] = {
    "status": with_status,
    "parent_run_id": lambda where, value: with_id(where, "r.parent_run_id", value),
    "root_run_id": lambda where, value: with_id(where, "r.root_run_id", value),
    "forked_from": lambda where, value: with_id(where, "r.forked_from_id", value),
    "schedule_id": lambda where, value: with_id(where, "r.schedule_id", value),
    "source": lambda where, value: where.also("r.source = %s", value),
    "label": with_label,
    "created_after": since,
    "created_before": before,
}


@extend_schema(responses=page_of(RUNS))
class RunList(HotListView):
    """List the runs of a project, newest first."""

    query_class: ClassVar = RunsQuery

    def get_rows(self) -> Fetch:
        where = self._filters(self.get_project().pk)
        text = self.query.get("q")
        read: Read = partial(search_runs, text) if text else RUNS.page
        conditions = unindexed_conditions(self._unindexed())
        return partial(read_window, read, where, conditions) if conditions.conditions else partial(read, where)

    def _unindexed(self) -> Filters:
        given = {name: self.query[name] for name in _UNINDEXED if name in self.query}
        return Filters(root_only="root" in self.query, **given)

    def _filters(self, project_id: UUID) -> Where:
        where = runs_of(project_id)
        if "agent_id" in self.query:
            where = with_agent(where, project_id, self.query["agent_id"])
        for name, add_filter in FILTERS.items():
            if name in self.query:
                where = add_filter(where, self.query[name])
        return where


@extend_schema(responses={200: RUN.schema()})
class RunDetail(ApiView):
    """Get a run."""

    def get(self, request: Request, **_: Any) -> HttpResponse:
        run = self.get_run_key()
        text = RUN.one(with_id(runs_of(run.project_id), "r.id", run.pk))
        if text is None:  # removed in the meantime
            raise RunNotFound("no such run")
        return self.etag_response(text)


@extend_schema(responses=page_of(CHILDREN))
class Children(HotListView):
    """List the child runs of a run, newest first, each with its own usage and the total of all runs below it.

    A child that was resumed is listed as several runs, one for each attempt; all have the same `root_run_id`.
    """

    def get_rows(self) -> Fetch:
        run = self.get_run_key()
        return partial(CHILDREN.page, with_id(runs_of(run.project_id), "r.parent_run_id", run.pk))
