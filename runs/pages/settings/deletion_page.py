"""The page that deletes an archived project: the data to delete, and a form confirmed by the slug."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.accounts.access import Action, EnteredProject, enter
from agentops.accounts.errors import NotConfirmed
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import see_other, sentence
from agentops.base.http.methods import require_http_methods
from agentops.base.refusals import Conflict
from runs.actions import project_deletion
from runs.actions.archiving import being_recorded
from runs.pages.agents.agents_page import page_context

#: Count → its noun, singular and plural.
NOUNS = {
    "runs": ("run", "runs"),
    "flow_runs": ("flow run", "flow runs"),
    "events": ("event", "events"),
    "agents": ("agent", "agents"),
    "flows": ("flow", "flows"),
    "members": ("member", "members"),
    "api_keys": ("API key", "API keys"),
    "sinks": ("sink", "sinks"),
    "alert_rules": ("alert rule", "alert rules"),
    "schedules": ("schedule", "schedules"),
    "imports": ("import", "imports"),
    "transcripts": ("transcript", "transcripts"),
}


@require_http_methods(["GET", "HEAD", "POST"])
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show what would be deleted, or delete the project if `slug` is its slug.

    Status 422 for another slug, 409 if the deletion is refused.
    """
    principal = principal_of(request)
    entry = enter(principal, project, Action.MANAGE)
    if request.method != "POST":
        return _page(request, entry)
    try:
        slug = request.POST.get("slug", "").strip()
        project_deletion.delete_project(entry.project, confirmation=slug, by=principal)
    except NotConfirmed as refusal:
        return _page(request, entry, error=sentence(refusal), status=422)
    except Conflict:
        # The page names the reason.
        return _page(request, entry, status=409)
    messages.success(request, f"{entry.project.name} is deleted. Its rows are removed in the background.")
    return see_other("projects")


def _page(request: HttpRequest, entry: EnteredProject, *, error: str = "", status: int = 200) -> HttpResponse:
    found = project_deletion.preview(entry.project)
    context: dict[str, Any] = {
        **page_context(entry, "settings"),
        "rows": [(count, NOUNS[name][count != 1]) for name, count in found.counts.items() if count],
        "being_recorded": being_recorded(entry.project),
        "refusal": sentence(found.refusal) if found.refusal else "",
        "error": error,
        "command": f"agentops project delete {entry.project.slug}",
    }
    return render(request, "runs/settings/delete_project.html", context, status=status)
