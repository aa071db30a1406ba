"""The first page of a project's settings, which also archives the project, and the page that deletes the project."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.accounts.access import Action, EnteredProject
from agentops.accounts.errors import NotArchivable, NotConfirmed
from agentops.accounts.memberships import change_project, unarchive_project
from agentops.accounts.models import Project
from agentops.accounts.settings_pages.page_parts import (
    PROJECT_FIELDS,
    ProjectSettingsForm,
    add_refusal,
    key_form,
    member_form,
    see_other,
    sentence,
)
from agentops.base.http.methods import require_http_methods, require_POST
from agentops.base.refusals import Conflict, Invalid
from runs.actions import project_changes
from runs.pages.page_parts import enter_project, project_context


@require_http_methods(["GET", "HEAD", "POST"])
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show the page, or change name, description and limit. Status 422 with errors."""
    principal, entry = enter_project(request, project, Action.MANAGE)
    if request.method != "POST":
        return _page(request, entry)
    form = ProjectSettingsForm(request.POST)
    if form.is_valid():
        try:
            change_project(entry.project, **form.cleaned_data, actor=principal)
        except Invalid as refusal:
            add_refusal(form, refusal, PROJECT_FIELDS)
        else:
            messages.success(request, "Project saved.")
            return see_other("runs:settings", entry.project.slug)
    return _page(request, entry, form=form, status=422)


@require_POST
def archive(request: HttpRequest, project: str) -> HttpResponse:
    """Archive the project if its slug was typed. Status 422 for another text, 409 while runs are in progress."""
    principal, entry = enter_project(request, project, Action.MANAGE)
    if request.POST.get("slug", "").strip() != entry.project.slug:
        error = f"Enter {entry.project.slug} to confirm."
        return _page(request, entry, archive_error=error, status=422)
    try:
        project_changes.archive(entry.project, by=principal)
    except NotArchivable as refusal:
        return _page(request, entry, archive_error=sentence(refusal), status=409)
    messages.success(request, f"{entry.project.name} is archived: read-only, and not in menus any more.")
    return see_other("runs:settings", entry.project.slug)


@require_POST
def unarchive(request: HttpRequest, project: str) -> HttpResponse:
    """Undo the archiving."""
    principal, entry = enter_project(request, project, Action.MANAGE)
    unarchive_project(entry.project, actor=principal)
    messages.success(request, f"{entry.project.name} is no longer archived.")
    return see_other("runs:settings", entry.project.slug)


def _page(
    request: HttpRequest,
    entry: EnteredProject,
    *,
    form: ProjectSettingsForm | None = None,
    archive_error: str = "",
    status: int = 200,
) -> HttpResponse:
    # A refused change may have changed the object.
    owner = Project.objects.get(pk=entry.project.pk) if form else entry.project
    initial = {name: getattr(owner, name) for name in ("name", "description", "max_running")}
    context: dict[str, Any] = {
        **project_context(entry, "settings"),
        "form": form or ProjectSettingsForm(initial=initial),
        "member_form": member_form(),
        "key_form": key_form(),
        "archive_error": archive_error,
        "in_progress": project_changes.in_progress(entry.project),
        "being_recorded": project_changes.being_recorded(entry.project),
    }
    return render(request, "runs/settings/general.html", context, status=status)


#: Name of a number of rows → its noun, singular and plural.
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
def delete(request: HttpRequest, project: str) -> HttpResponse:
    """Show what would be deleted, or delete the project if the user has typed its slug.

    Status 422 for another text, 409 if the deletion is refused.
    """
    principal, entry = enter_project(request, project, Action.MANAGE)
    if request.method != "POST":
        return _deletion_page(request, entry)
    try:
        slug = request.POST.get("slug", "").strip()
        project_changes.delete_project(entry.project, confirmation=slug, by=principal)
    except NotConfirmed as refusal:
        return _deletion_page(request, entry, error=sentence(refusal), status=422)
    except Conflict:
        # The page names the reason.
        return _deletion_page(request, entry, status=409)
    messages.success(request, f"{entry.project.name} is deleted. Its rows are removed in the background.")
    return see_other("projects")


def _deletion_page(request: HttpRequest, entry: EnteredProject, *, error: str = "", status: int = 200) -> HttpResponse:
    preview = project_changes.preview(entry.project)
    context: dict[str, Any] = {
        **project_context(entry, "settings"),
        "rows": [(count, NOUNS[name][count != 1]) for name, count in preview.counts.items() if count],
        "being_recorded": project_changes.being_recorded(entry.project),
        "refusal": sentence(preview.refusal) if preview.refusal else "",
        "error": error,
        "command": f"agentops project delete {entry.project.slug}",
    }
    return render(request, "runs/settings/delete_project.html", context, status=status)
