"""The page at `/`: it redirects to the only project, or lists the projects with the entries that need the user."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from agentops.accounts.access import projects_for
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_safe
from runs.queries.overview.needs import NeedCounts, need_counts

#: Maximum number of listed projects.
MAX_PROJECTS = 200


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """Redirect to the only visible project, or list the projects; projects that need a person come first.

    Two queries.
    """
    visible = projects_for(principal_of(request)).filter(archived_at=None)
    projects = list(visible.order_by("name", "pk")[:MAX_PROJECTS])
    if not projects:
        return render(request, "no_project.html")
    if len(projects) == 1:
        return redirect("runs:overview", projects[0].slug)
    counts = need_counts([project.pk for project in projects])
    rows = [(project, counts.get(project.pk, NeedCounts())) for project in projects]
    rows.sort(key=lambda row: -row[1].total)
    return render(request, "runs/overview/home.html", {"projects": projects, "rows": rows, "most": MAX_PROJECTS})
