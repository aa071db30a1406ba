"""`…/agent-runs`, `…/agent-runs/{run}` and `…/agent-runs/{run}/children`: runs, as lists and one by one."""

from __future__ import annotations

from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse

from runs.api.base_views import ApiView
from runs.api.requests.pagination import PAGING, Pages
from runs.api.requests.parameters import ChoiceParameter, Choices, IdParameter, Parameter, Query, TextParameter, Time
from runs.api.schema.shared import page_of
from runs.errors import RunNotFound
from runs.models import AgentRun
from runs.queries.json_lists import Where
from runs.queries.run_columns import RUN, RUNS, before, runs_of, since, with_agent, with_id, with_label, with_status
from runs.queries.search import runs_saying
from runs.statuses import RunStatus

FILTERS: tuple[Parameter, ...] = (
    Choices(
        name="status",
        choices=[status.value for status in RunStatus],
        description="Filter by status. Repeat the parameter or separate values with commas.",
        example=["paused", "failed"],
    ),
    TextParameter(name="agent_id", description="Filter by agent name.", example="reviewer"),
    IdParameter(name="parent_run_id", description="Filter by parent run."),
    IdParameter(
        name="root_run_id", description="Filter by lineage: the run with this ID and all runs that continue it."
    ),
    IdParameter(name="forked_from", description="Filter by the run that was forked."),
    ChoiceParameter(name="source", choices=list(AgentRun.Source.values), description="Filter by source."),
    TextParameter(name="label", description="Filter by label, exact match.", example="nightly"),
    Time(name="created_after", description="Runs created at this time or later.", example="2026-11-20T00:00:00Z"),
    Time(name="created_before", description="Runs created before this time.", example="2026-11-21T00:00:00Z"),
    TextParameter(
        name="q",
        description="Search titles and messages for this text, literally; A to Z match in either case. "
        "A page looks through the next 500 runs at most, so it may be short or empty and still have a `next`.",
        example="rate limit",
    ),
)
#: Filters by another run, and the column that names it.
RELATIVES = {"parent_run_id": "r.parent_run_id", "root_run_id": "r.root_run_id", "forked_from": "r.forked_from_id"}


class RunList(ApiView):
    """List the runs of a project, newest first."""

    parameters: ClassVar = {"get": (*FILTERS, *PAGING)}
    answers: ClassVar = {"get": page_of(RUNS)}

    def get(self, request: HttpRequest, **_: Any) -> HttpResponse:
        project = self.get_project()
        pages = Pages.of(request, self.query, "runs", project.pk)
        where, said = filtered(runs_of(project.pk), project.pk, self.query), self.query["q"]
        return pages.answer(lambda span: runs_saying(said, where, span) if said else RUNS.page(where, span))


class RunDetail(ApiView):
    """Get a run."""

    answers: ClassVar = {"get": RUN.schema()}

    def get(self, request: HttpRequest, **_: Any) -> HttpResponse:
        run = self.look_up_run()
        text = RUN.one(with_id(runs_of(run.project_id), "r.id", run.pk))
        if text is None:  # removed since
            raise RunNotFound("no such run")
        return self.tagged(text)


class Children(ApiView):
    """List the child runs of a run, newest first."""

    parameters: ClassVar = {"get": PAGING}
    answers: ClassVar = {"get": page_of(RUNS)}

    def get(self, request: HttpRequest, **_: Any) -> HttpResponse:
        run = self.look_up_run()
        where = with_id(runs_of(run.project_id), "r.parent_run_id", run.pk)
        return Pages.of(request, self.query, "children", run.pk).answer(lambda span: RUNS.page(where, span))


def filtered(where: Where, project_id: Any, asked: Query) -> Where:
    if asked["status"]:
        where = with_status(where, asked["status"])
    if asked["agent_id"]:
        where = with_agent(where, project_id, asked["agent_id"])
    for name, column in RELATIVES.items():
        if asked[name]:
            where = with_id(where, column, asked[name])
    if asked["source"]:
        where = where.also("r.source = %s", asked["source"])
    if asked["label"]:
        where = with_label(where, asked["label"])
    if asked["created_after"]:
        where = since(where, asked["created_after"])
    if asked["created_before"]:
        where = before(where, asked["created_before"])
    return where
