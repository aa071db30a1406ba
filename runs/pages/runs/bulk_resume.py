"""Resuming many runs of the list: first what would become of each, then what became of it.

Both are answers to a POST, since the ids of two hundred runs fit into no address. Sent twice, the second time finds
every run resumed already, and links to how it goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django_htmx.middleware import HtmxDetails

from agentops.http.methods import require_POST
from agentops.projects.access import Action, Principal, may, project_for, projects_for
from agentops.projects.models import Project
from agentops.projects.requests import principal_of
from runs.actions import run_actions
from runs.actions.run_actions import BulkOutcome
from runs.errors import InvalidInput
from runs.models import AgentRun
from runs.pages.forms import fields
from runs.pages.runs.list_query import Filters, InvalidListQuery
from runs.statuses import LIVE, RunStatus
from timeline.shown import clean

#: Runs of one go, as the API has it.
MOST = 200
MAX_CHOICES = 200
ALREADY = "already_resumed"
#: What is said of a run that was left out of the preview, and could be resumed by the time of the answer.
LATER = "it could not be resumed when you looked, and was left alone"


@dataclass(frozen=True)
class BulkRow:
    """A run of many, and what becomes of it."""

    id: UUID
    title: str
    status: str
    #: Why it is left alone; empty where it is not.
    reason: str = ""
    #: The run that it went on as.
    resumed_as: UUID | None = None


@dataclass(frozen=True)
class Wish:
    """What the form says."""

    ids: Sequence[UUID]
    #: Shown as skipped before: only told of again.
    left: Sequence[UUID]
    message: str
    kill: bool
    #: There are more that match than go at once.
    more: bool = False


@require_POST
def resume(request: HttpRequest, project: str) -> HttpResponse:
    principal = principal_of(request)
    owner = project_for(principal, project, Action.OPERATE)
    wish = _wish(request, principal, owner)
    if wish.kill:
        project_for(principal, owner.pk, Action.KILL)
    chosen = _runs(owner, [*wish.ids, *wish.left])
    try:
        if request.POST.get("do") == "resume":
            return _shown(request, owner, wish, _done(principal, chosen, wish), done=True)
        problem = ""
        outcomes = run_actions.resume_many(principal, chosen.values(), dry_run=True, **_options(wish))
    except InvalidInput as refusal:
        problem = f"{refusal}."
        outcomes = run_actions.resume_many(principal, chosen.values(), dry_run=True, kill=wish.kill)
    live = sum(run.state in LIVE for run in chosen.values())
    takes = live and (wish.kill or may(principal, Action.KILL, owner.pk))
    return _shown(request, owner, wish, _lines(chosen, outcomes), problem=problem, live=live if takes else 0)


def _done(principal: Principal, chosen: dict[UUID, AgentRun], wish: Wish) -> list[BulkRow]:
    """Resume what was promised; of the others say why not."""
    promised = [chosen[one] for one in wish.ids if one in chosen]
    done = run_actions.resume_many(principal, promised, **_options(wish))
    left = [chosen[one] for one in wish.left if one in chosen]
    asked = run_actions.resume_many(principal, left, dry_run=True)
    told = [each if each.code else BulkOutcome(each.run_id, code="later", reason=LATER) for each in asked]
    return _lines(chosen, [*done, *told])


def _options(wish: Wish) -> dict[str, Any]:
    # An empty box says nothing, which is "continue"; spaces are an empty message.
    return {"message": wish.message or None, "kill": wish.kill}


# --- Which runs -----------------------------------------------------------------------------------------------------


def _wish(request: HttpRequest, principal: Principal, project: Project) -> Wish:
    form = request.POST
    kill, message = bool(form.get("kill")), fields.text(form.get("message", ""))
    if form.get("every"):
        project_for(principal, project.pk, Action.KILL)
        found = _matching(project, Filters.parse(form), kill=kill)
        return Wish(found[:MOST], [], message, kill, more=len(found) > MOST)
    ids, left = _ids(form.getlist("id")), _ids(form.getlist("left"))
    if len(ids) + len(left) > MOST:
        raise InvalidListQuery(f"at most {MOST} runs are resumed at once")
    return Wish(ids, left, message, kill)


def _matching(project: Project, filters: Filters, *, kill: bool) -> list[UUID]:
    """The paused ones that pass the filters, the oldest first; with `kill` the live ones after them."""
    unended = filters.apply(AgentRun.objects.filter(project=project)).unended().order_by("pk")
    found = list(unended.filter(status=RunStatus.PAUSED).values_list("pk", flat=True)[: MOST + 1])
    if kill and len(found) <= MOST:
        found += unended.filter(status__in=LIVE).values_list("pk", flat=True)[: MOST + 1 - len(found)]
    return found


def _ids(texts: Iterable[str]) -> list[UUID]:
    """Each once."""
    try:
        return [UUID(text) for text in dict.fromkeys(texts)]
    except ValueError:
        raise InvalidListQuery("id must be that of a run") from None


def _runs(project: Project, ids: Iterable[UUID]) -> dict[UUID, AgentRun]:
    """Those that there are: another project's run is none."""
    runs = AgentRun.objects.select_related("project").filter(project=project, pk__in=list(ids))
    return {run.pk: run for run in runs.only("project", "status", "title", "source")}


# --- What is shown --------------------------------------------------------------------------------------------------


def _lines(chosen: dict[UUID, AgentRun], outcomes: Iterable[BulkOutcome]) -> list[BulkRow]:
    return [
        BulkRow(one.run_id, clean(run.title), run.status, f"{one.reason[:1].upper()}{one.reason[1:]}.", one.resumed_as)
        if one.code
        else BulkRow(one.run_id, clean(run.title), run.status, resumed_as=one.resumed_as)
        for one in outcomes
        for run in [chosen[one.run_id]]
    ]


def _shown(
    request: HttpRequest, project: Project, wish: Wish, lines: list[BulkRow], *, done: bool = False, **also: Any
) -> HttpResponse:
    context = {
        "project": project,
        "wish": wish,
        "resumed": [line for line in lines if not line.reason],
        "before": [line for line in lines if line.reason and line.resumed_as],
        "skipped": [line for line in lines if line.reason and not line.resumed_as],
        "chosen": len({*wish.ids, *wish.left}),
        "gone": len({*wish.ids, *wish.left}) - len(lines),
        "done": done,
        "most": MOST,
        **also,
    }
    if HtmxDetails(request):
        return render(request, "runs/_bulk.html", context)
    # Only where there is a page around it.
    projects = projects_for(principal_of(request)).order_by("name", "pk")[:MAX_CHOICES]
    return render(request, "runs/bulk.html", {**context, "projects": projects})
