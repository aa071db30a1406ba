"""The first page of a project's settings: its name, common members and keys, and archiving."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.accounts.access import Action, EnteredProject, enter
from agentops.accounts.errors import NotArchivable
from agentops.accounts.memberships import change_project, unarchive_project
from agentops.accounts.models import Project
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import add_refusal, see_other, sentence
from agentops.accounts.settings_pages.settings_forms import PROJECT_FIELDS, ProjectSettingsForm, key_form, member_form
from agentops.base.http.methods import require_http_methods, require_POST
from agentops.base.refusals import Invalid
from runs.actions import archiving
from runs.pages.agents.agents_page import page_context


@require_http_methods(["GET", "HEAD", "POST"])
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show the page, or change name, description and limit. Status 422 with errors."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.MANAGE)
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
    """Archive the project if `slug` is its slug. Status 422 for another one, 409 while runs are in progress."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.MANAGE)
    if request.POST.get("slug", "").strip() != entry.project.slug:
        error = f"Enter {entry.project.slug} to confirm."
        return _page(request, entry, archive_error=error, status=422)
    try:
        archiving.archive(entry.project, by=principal)
    except NotArchivable as refusal:
        return _page(request, entry, archive_error=sentence(refusal), status=409)
    messages.success(request, f"{entry.project.name} is archived: read-only, and not in menus any more.")
    return see_other("runs:settings", entry.project.slug)


@require_POST
def unarchive(request: HttpRequest, project: str) -> HttpResponse:
    """Undo the archiving."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.MANAGE)
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
    owner = Project.objects.get(pk=entry.project.pk) if form else entry.project
    initial = {name: getattr(owner, name) for name in ("name", "description", "max_running")}
    context: dict[str, Any] = {
        **page_context(entry, "settings"),
        "form": form or ProjectSettingsForm(initial=initial),
        "member_form": member_form(),
        "key_form": key_form(),
        "archive_error": archive_error,
        "in_progress": archiving.in_progress(entry.project),
        "being_recorded": archiving.being_recorded(entry.project),
    }
    return render(request, "runs/settings/general.html", context, status=status)
