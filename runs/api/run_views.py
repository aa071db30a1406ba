"""`…/agent-runs`, `…/agent-runs/{run}` and `…/agent-runs/{run}/children`: runs, as lists and one by one."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request

from runs.api.base_views import ApiView, HotListView
from runs.api.requests.pagination import Fetch, page_of
from runs.api.requests.queries import Cursor, Limit, Text
from runs.api.requests.run_filter_query import ListFilterQuery
from runs.errors import RunNotFound
from runs.queries.run_columns import CHILDREN, RUN, RUNS, runs_of, where_of, with_id
from runs.queries.run_lists.filter_table import IN_API
from runs.queries.run_lists.run_filters import Filters
from runs.queries.run_lists.run_windows import Read, read_window
from runs.queries.searching.search import search_runs


class RunsQuery(ListFilterQuery):  # type: ignore[misc]
    q = Text(
        help_text="Search titles and messages for this text, literally; case of A to Z is ignored. "
        "A page looks through the next 500 runs at most, so it may be short or empty and still have a `next`.",
        style={"example": "rate limit"},
    )
    limit, cursor = Limit(), Cursor()


@extend_schema(responses=page_of(RUNS))
class RunList(HotListView):
    """List the runs of a project, newest first."""

    query_class: ClassVar = RunsQuery

    def get_rows(self) -> Fetch:
        project_id, text = self.get_project().pk, self.query.get("q")
        having_index, others = Filters.parse(self.request.query_params, IN_API).by_index()
        where = runs_of(project_id) & where_of(having_index.condition(project_id))
        read: Read = partial(search_runs, text) if text else RUNS.page
        if not others:
            return partial(read, where)
        return partial(read_window, read, where, where_of(others.condition(project_id)))


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
