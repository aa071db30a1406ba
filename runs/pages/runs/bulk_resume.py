"""Bulk resume: first a preview of the effect on each run, then the result.

Both are responses to a POST, because the IDs of 200 runs do not fit into a URL. Submitting the form twice is safe: the
second response links to the runs created by the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django_htmx.middleware import HtmxDetails

from agentops.accounts.access import Action, Principal, may, project_for, projects_for
from agentops.accounts.models import Project
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_POST
from agentops.base.refusals import Invalid, InvalidQuery
from runs.actions import run_actions
from runs.actions.run_actions import BulkOutcome
from runs.lifecycle import children
from runs.models import AgentRun
from runs.pages.forms import fields
from runs.queries.run_lists.run_filters import Filters
from runs.statuses import LIVE, RunStatus
from timeline.display import clean

#: Maximum runs of a bulk resume, as in the API.
MAX_RUNS = 200
MAX_CHOICES = 200
#: The reason for a run that the preview skipped and that became resumable later.
CHANGED = "it could not be resumed when the preview was shown"


@dataclass(frozen=True)
class BulkRow:
    """A selected run and the effect or result of the resume."""

    id: UUID
    title: str
    status: str
    #: Why the run is skipped; empty if it is resumed.
    reason: str = ""
    #: The run that continues it.
    resumed_as: UUID | None = None


@dataclass(frozen=True)
class BulkRequest:
    """The values of the form."""

    ids: Sequence[UUID]
    #: Runs that the preview showed as skipped: listed again, never resumed.
    skipped_ids: Sequence[UUID]
    message: str
    kill: bool
    #: Whether more than MAX_RUNS runs match.
    has_more: bool = False


@require_POST
def resume(request: HttpRequest, project: str) -> HttpResponse:
    """Show the preview of a bulk resume; with `do=resume`, resume the runs and show the result.

    With `do=include`, the preview has the active runs that it skipped before.
    """
    principal = principal_of(request)
    owner = project_for(principal, project, Action.OPERATE)
    bulk = _parse_request(request, principal, owner)
    if bulk.kill:
        project_for(principal, owner.pk, Action.KILL)
    selected = _runs(owner, [*bulk.ids, *bulk.skipped_ids])
    try:
        if request.POST.get("do") == "resume":
            return _render(request, owner, bulk, _resume(principal, selected, bulk), done=True)
        problem = ""
        outcomes = run_actions.resume_many(principal, selected.values(), dry_run=True, **_options(bulk))
    except Invalid as refusal:
        problem = f"{refusal}."
        outcomes = run_actions.resume_many(principal, selected.values(), dry_run=True, kill=bulk.kill)
    live = [run.pk for run in selected.values() if run.state in LIVE]
    may_kill = live and (bulk.kill or may(principal, Action.KILL, owner.pk))
    along = len(children.taken_along(live, RunStatus.PAUSED)) if bulk.kill and live else 0
    rows = _rows(selected, outcomes)
    return _render(request, owner, bulk, rows, problem=problem, live=len(live) if may_kill else 0, along=along)


def _resume(principal: Principal, selected: dict[UUID, AgentRun], bulk: BulkRequest) -> list[BulkRow]:
    """Resume the runs that the preview listed, and return the results of all runs."""
    to_resume = [selected[run_id] for run_id in bulk.ids if run_id in selected]
    outcomes = run_actions.resume_many(principal, to_resume, **_options(bulk))
    skipped = [selected[run_id] for run_id in bulk.skipped_ids if run_id in selected]
    refusals = run_actions.resume_many(principal, skipped, dry_run=True)
    outcomes += [each if each.code else BulkOutcome(each.run_id, code="changed", reason=CHANGED) for each in refusals]
    return _rows(selected, outcomes)


def _options(bulk: BulkRequest) -> dict[str, Any]:
    # An empty field means "continue"; only spaces are an empty message.
    return {"message": bulk.message or None, "kill": bulk.kill}


# --- Selection of runs ----------------------------------------------------------------------------------------------


def _parse_request(request: HttpRequest, principal: Principal, project: Project) -> BulkRequest:
    form = request.POST
    includes_live = form.get("do") == "include"
    kill, message = includes_live or bool(form.get("kill")), fields.text(form.get("message", ""))
    if form.get("every"):
        project_for(principal, project.pk, Action.KILL)
        matching = _matching(project, Filters.parse(form), kill=kill)
        return BulkRequest(matching[:MAX_RUNS], [], message, kill, has_more=len(matching) > MAX_RUNS)
    ids, skipped_ids = _ids(form.getlist("id")), _ids(form.getlist("skipped"))
    if len(ids) + len(skipped_ids) > MAX_RUNS:
        raise InvalidQuery(f"a bulk resume takes at most {MAX_RUNS} runs, not {len(ids) + len(skipped_ids)}")
    if includes_live:
        ids, skipped_ids = [*ids, *skipped_ids], []
    return BulkRequest(ids, skipped_ids, message, kill)


def _matching(project: Project, filters: Filters, *, kill: bool) -> list[UUID]:
    """Return the IDs of matching paused runs, oldest first; with `kill`, followed by matching active runs.

    At most MAX_RUNS + 1.
    """
    runs = AgentRun.objects.filter(filters.condition(project.pk), project=project)
    unended = runs.unended().order_by("pk")
    ids = list(unended.filter(status=RunStatus.PAUSED).values_list("pk", flat=True)[: MAX_RUNS + 1])
    if kill and len(ids) <= MAX_RUNS:
        ids += unended.filter(status__in=LIVE).values_list("pk", flat=True)[: MAX_RUNS + 1 - len(ids)]
    return ids


def _ids(texts: Iterable[str]) -> list[UUID]:
    """Return the IDs without duplicates."""
    try:
        return [UUID(text) for text in dict.fromkeys(texts)]
    except ValueError:
        raise InvalidQuery("id must be a run ID") from None


def _runs(project: Project, ids: Iterable[UUID]) -> dict[UUID, AgentRun]:
    """Return the existing runs of the project, by ID."""
    runs = AgentRun.objects.select_related("project").filter(project=project, pk__in=list(ids))
    return {run.pk: run for run in runs.only("project", "status", "title", "source")}


# --- The response --------------------------------------------------------------------------------------------------


def _rows(selected: dict[UUID, AgentRun], outcomes: Iterable[BulkOutcome]) -> list[BulkRow]:
    return [
        BulkRow(one.run_id, clean(run.title), run.status, f"{one.reason[:1].upper()}{one.reason[1:]}.", one.resumed_as)
        if one.code
        else BulkRow(one.run_id, clean(run.title), run.status, resumed_as=one.resumed_as)
        for one in outcomes
        for run in [selected[one.run_id]]
    ]


def _render(
    request: HttpRequest, project: Project, bulk: BulkRequest, rows: list[BulkRow], *, done: bool = False, **extra: Any
) -> HttpResponse:
    context = {
        "project": project,
        "bulk": bulk,
        "resumed": [row for row in rows if not row.reason],
        "already_resumed": [row for row in rows if row.reason and row.resumed_as],
        "skipped": [row for row in rows if row.reason and not row.resumed_as],
        "selected_count": len({*bulk.ids, *bulk.skipped_ids}),
        "missing_count": len({*bulk.ids, *bulk.skipped_ids}) - len(rows),
        "done": done,
        "most": MAX_RUNS,
        **extra,
    }
    if HtmxDetails(request):
        return render(request, "runs/runs/_bulk.html", context)
    # The project menu is needed only on a full page.
    projects = projects_for(principal_of(request)).order_by("name", "pk")[:MAX_CHOICES]
    return render(request, "runs/runs/bulk.html", {**context, "projects": projects})
