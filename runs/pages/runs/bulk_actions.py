"""What users do with several runs of the list: compare two, change labels, and resume many.

A bulk resume first shows its effect on each run, and then the result. Both are responses to a POST, because the IDs of
200 runs do not fit into a URL. If the form is submitted twice, the second response links to the runs that the first one
created.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.urls import reverse
from django_htmx.middleware import HtmxDetails

from agentops.accounts.access import Action, Principal, may, project_for, projects_for
from agentops.accounts.models import Project
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import see_other, sentence
from agentops.base.http.methods import require_POST
from agentops.base.refusals import Invalid, InvalidQuery, Refusal
from runs.actions import run_actions, run_annotations
from runs.actions.run_actions import BulkOutcome
from runs.lifecycle import children
from runs.models import AgentRun
from runs.pages.forms import fields
from runs.pages.page_parts import MAX_CHOICES
from runs.pages.runs.list_query import ListQuery
from runs.queries.run_lists.run_filters import Filters
from runs.statuses import LIVE, RunStatus
from timeline.display import clean


@require_POST
def compare(request: HttpRequest, project: str) -> HttpResponse:
    """Show the comparison of the two selected runs, the older one first; or return to the list with an error."""
    owner = project_for(principal_of(request), project, Action.READ)
    runs = AgentRun.objects.filter(project=owner, pk__in=selected_ids(request.POST))
    run_ids = list(runs.order_by("created_at", "pk").values_list("pk", flat=True))
    if len(run_ids) == 2:
        location = f"{reverse('runs:compare')}?{urlencode(dict(zip('ab', run_ids, strict=True)))}"
    else:
        messages.error(request, f"Not compared: select two runs, not {len(run_ids)}.")
        location = list_of(owner, request.POST)
    return see_other(location)


@require_POST
def change_labels(request: HttpRequest, project: str) -> HttpResponse:
    """Add a label to the selected runs, or remove it with `do=remove-label`, and return to the list."""
    principal = principal_of(request)
    owner = project_for(principal, project, Action.OPERATE)
    form = request.POST
    ids = selected_ids(form)
    label = fields.line(form.get("new_label", ""))
    is_removal = form.get("do") == "remove-label"
    # Without runs of other projects and deleted runs.
    run_ids = list(AgentRun.objects.filter(project=owner, pk__in=ids).values_list("pk", flat=True))
    try:
        if not run_ids:
            raise InvalidQuery("select at least one run")
        if not label:
            raise InvalidQuery("enter a label")
        changes = {"add": [], "remove": [label]} if is_removal else {"add": [label], "remove": []}
        count = run_annotations.change_labels_of_many(run_ids, by=principal, **changes)
        verb = "removed from" if is_removal else "added to"
        messages.success(request, f"Label “{label}” {verb} {count} run{'' if count == 1 else 's'}.")
    except Refusal as refusal:
        messages.error(request, f"Labels not changed: {refusal}.")
    return see_other(list_of(owner, form))


def list_of(project: Project, form: QueryDict) -> str:
    """Return the URL of the list that contained the form."""
    query = ListQuery.parse(_list_query(form))
    parameters = query.query_string(before=query.before, after=query.after)
    return reverse("runs:list", args=[project.slug]) + (parameters or "?all=1")


def selected_ids(form: QueryDict) -> list[UUID]:
    """Return the IDs of the selected runs. Raises InvalidQuery."""
    ids = _ids(form.getlist("id"))
    if len(ids) > MAX_RUNS:
        raise InvalidQuery(f"at most {MAX_RUNS} runs can be selected at once, not {len(ids)}")
    return ids


def _list_query(form: QueryDict) -> QueryDict:
    """Return the query of the list, whose parameters are hidden fields of the form."""
    own = {"id", "new_label", "do", "csrfmiddlewaretoken"}
    return QueryDict(urlencode([(name, value) for name in form if name not in own for value in form.getlist(name)]))


#: Maximum runs of a bulk resume, as in the API.
MAX_RUNS = 200
#: The reason for not resuming a run that could not be resumed when the preview was shown, but could be now.
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
    """The values of the form of a bulk resume."""

    ids: Sequence[UUID]
    #: Runs that the preview showed as skipped. They are listed again, but not resumed.
    skipped_ids: Sequence[UUID]
    message: str
    #: Whether active runs are stopped and resumed, too.
    kill: bool
    #: Whether more than MAX_RUNS runs match.
    has_more: bool = False


@require_POST
def resume(request: HttpRequest, project: str) -> HttpResponse:
    """Show the preview of a bulk resume; with `do=resume`, resume the runs and show the result.

    With `do=include`, the preview includes the active runs that it skipped before.
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
    child_count = len(children.taken_along(live, RunStatus.PAUSED)) if bulk.kill and live else 0
    rows = _rows(selected, outcomes)
    return _render(request, owner, bulk, rows, problem=problem, live=len(live) if may_kill else 0, along=child_count)


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


def _parse_request(request: HttpRequest, principal: Principal, project: Project) -> BulkRequest:
    """Return the values of the form. With `every`, its runs are all those that match the filters of the list."""
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
    """Return the IDs without duplicates. Raises InvalidQuery."""
    try:
        return [UUID(text) for text in dict.fromkeys(texts)]
    except ValueError:
        raise InvalidQuery("id must be a run ID") from None


def _runs(project: Project, ids: Iterable[UUID]) -> dict[UUID, AgentRun]:
    """Return the existing runs of the project, by ID."""
    runs = AgentRun.objects.select_related("project").filter(project=project, pk__in=list(ids))
    return {run.pk: run for run in runs.only("project", "status", "title", "source")}


def _rows(selected: dict[UUID, AgentRun], outcomes: Iterable[BulkOutcome]) -> list[BulkRow]:
    rows = []
    for outcome in outcomes:
        run, reason = selected[outcome.run_id], sentence(outcome.reason) if outcome.code else ""
        rows.append(BulkRow(run.pk, clean(run.title), run.status, reason, outcome.resumed_as))
    return rows


def _render(
    request: HttpRequest, project: Project, bulk: BulkRequest, rows: list[BulkRow], *, done: bool = False, **extra: Any
) -> HttpResponse:
    """Show the preview or, if it is `done`, the result of a bulk resume."""
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
    # Only a whole page has the menu of projects.
    projects = projects_for(principal_of(request)).order_by("name", "pk")[:MAX_CHOICES]
    return render(request, "runs/runs/bulk.html", {**context, "projects": projects})
