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
from runs.api.requests.queries import Choices, Cursor, Limit, QuerySerializer, Text, Time
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
from runs.queries.searching.search import search_runs
from runs.statuses import RunStatus


class RunsQuery(QuerySerializer):
    status = Choices(
        choices=[status.value for status in RunStatus],
        required=False,
        help_text="Filter by status. Repeat the parameter or separate values with commas.",
        style={"example": ["paused", "failed"]},
    )
    agent_id = Text(help_text="Filter by agent name.", style={"example": "reviewer"})
    parent_run_id = IdField(required=False, help_text="Filter by parent run.")
    root_run_id = IdField(
        required=False, help_text="Filter by lineage: the run with this ID and all runs that continue it."
    )
    forked_from = IdField(required=False, help_text="Filter by the run that was forked.")
    source = Choice(choices=AgentRun.Source.values, required=False, help_text="Filter by source.")
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


#: Filters, and the SQL condition of each.
FILTERS: dict[str, Callable[[Where, Any], Where]] = {
    "status": with_status,
    "parent_run_id": lambda where, value: with_id(where, "r.parent_run_id", value),
    "root_run_id": lambda where, value: with_id(where, "r.root_run_id", value),
    "forked_from": lambda where, value: with_id(where, "r.forked_from_id", value),
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
        return partial(search_runs, text, where) if text else partial(RUNS.page, where)

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
    """List the child runs of a run, newest first, each with its own use and the total of all runs below it.

    A child that was resumed is listed as several runs, one for each attempt; `root_run_id` is the same in all.
    """

    def get_rows(self) -> Fetch:
        run = self.get_run_key()
        return partial(CHILDREN.page, with_id(runs_of(run.project_id), "r.parent_run_id", run.pk))
