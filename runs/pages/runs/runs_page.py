"""The list of a project's runs: the page, the rows that it asks for again, and the stream that tells it when."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt

from agentops.http.methods import require_GET, require_safe
from agentops.projects.access import Action, may, project_for, projects_for
from agentops.projects.models import Project
from agentops.projects.requests import principal_of
from runs.models import Agent, AgentRun
from runs.pages import commands
from runs.pages.runs.list_query import MAX_NEW, Filters, ListPlace, ListQuery, Page, ids_of
from runs.pages.runs.run_row import RunRow, rows_of
from runs.queries.durations import with_times
from runs.statuses import RunStatus
from timeline.access import Permit
from timeline.live.response import ProjectStream, refuse_foreign

#: Of a menu; nobody scrolls through more.
MAX_CHOICES = 200


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    principal = principal_of(request)
    owner = project_for(principal, project, Action.READ)
    asked = ListQuery.parse(request.GET)
    page, operates = asked.page(owner), may(principal, Action.OPERATE, owner.pk)
    shown = rows_of(page.runs, timezone.now())
    context = {
        "project": owner,
        "projects": projects_for(principal).order_by("name", "pk")[:MAX_CHOICES],
        "rows": shown,
        "rows_url": _rows_url(owner, asked, page, shown, boxes=operates),
        "pairs": asked.filters.pairs(),
        "page": page,
        "on_top": page.since is not None,
        "top": _top(owner, asked.filters),
        "clear": _top(owner, Filters()),
        "filters": asked.filters,
        "may_operate": operates,
        "may_take": operates and may(principal, Action.KILL, owner.pk),
        "commands": commands.first_run(owner),
        **_choices(owner, asked.filters),
    }
    return render(request, "runs/list.html", context)


@require_safe
def rows(request: HttpRequest, project: str) -> HttpResponse:
    """The rows that a page shows, as they are now; and how many runs have come since it was loaded."""
    owner = project_for(principal_of(request), project, Action.READ)
    asked = ListQuery.parse(request.GET)
    ids = ids_of(request.GET.get("ids", ""))
    since = request.GET.get("since")
    found = with_times(AgentRun.objects.filter(project=owner, pk__in=ids).for_list()) if ids else []
    new = asked.new_since(owner, ListPlace.parse(since, "since")) if since else 0
    context = {
        "project": owner,
        "rows": rows_of(found, timezone.now()),
        "new": f"{MAX_NEW}+" if new > MAX_NEW else new,
        "top": _top(owner, asked.filters),
        # As the page had them; whoever ticks one is asked what they may do.
        "boxes": bool(request.GET.get("boxes")),
    }
    return render(request, "runs/_list_changes.html", context)


# Changes nothing, so it asks for no token; otherwise a POST would be told of the token and not of the method.
@csrf_exempt
@require_GET
def stream(request: HttpRequest, project: str) -> HttpResponse:
    """Says which run was created or changed its status. A hint: the page then asks for its rows."""
    refuse_foreign(request)
    principal = principal_of(request)
    owner = project_for(principal, project, Action.READ)
    return ProjectStream(owner.pk, Permit(principal, owner.pk, request.session.session_key))


def _choices(project: Project, filters: Filters) -> dict[str, Any]:
    """What the filters can be set to."""
    agents = Agent.objects.filter(project=project).order_by("slug").values_list("slug", flat=True)[:MAX_CHOICES]
    return {
        "statuses": [(status.value, status in filters.statuses) for status in RunStatus],
        "sources": AgentRun.Source.values,
        # The one that is chosen may have been deleted, and still has runs' names in addresses that people keep.
        "agents": sorted({*agents, *filter(None, [filters.agent])}),
    }


def _top(project: Project, filters: Filters) -> str:
    """The address of the newest runs that pass the filters."""
    return reverse("runs:list", args=[project.slug]) + ListQuery(filters).address()


def _rows_url(project: Project, asked: ListQuery, page: Page, shown: list[RunRow], *, boxes: bool) -> str:
    """Where the page gets its changes; empty where there can be none. A run that is over changes no more."""
    ids = ",".join(row["id"] for row in shown if not row["over"])
    places = [(name, str(value)) for name, value in (("ids", ids), ("since", page.since)) if value]
    if not places:
        return ""
    query = urlencode(asked.filters.pairs() + places + [("boxes", "1")] * boxes, safe=",")
    return f"{reverse('runs:list-rows', args=[project.slug])}?{query}"
