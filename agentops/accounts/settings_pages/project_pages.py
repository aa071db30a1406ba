"""The list of projects, where superusers create them."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.accounts.access import Action, Principal, may, projects_for
from agentops.accounts.errors import RoleRequired
from agentops.accounts.memberships import create_owned_project
from agentops.accounts.models import Membership
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import MAX_CHOICES, add_refusal, see_other
from agentops.accounts.settings_pages.settings_forms import PROJECT_FIELDS, NewProjectForm
from agentops.base.http.methods import require_http_methods
from agentops.base.refusals import Conflict, Invalid

PAGE_SIZE = 100


@require_http_methods(["GET", "HEAD", "POST"])
def index(request: HttpRequest) -> HttpResponse:
    """Show a page of the projects that the user may see, by slug, or create one. Status 422 with errors."""
    principal = principal_of(request)
    may_create = may(principal, Action.SUPER, None)
    if request.method != "POST":
        return _page(request, principal, NewProjectForm() if may_create else None)
    if not may_create or not request.user.is_authenticated:
        raise RoleRequired("only superusers may create projects")
    form = NewProjectForm(request.POST)
    if form.is_valid():
        try:
            project = create_owned_project(**form.cleaned_data, owner=request.user, actor=principal)
        except (Conflict, Invalid) as refusal:
            add_refusal(form, refusal, PROJECT_FIELDS)
        else:
            messages.success(request, f"Project {project.name} created. You are its admin.")
            return see_other("runs:list", project.slug)
    return _page(request, principal, form, status=422)


def _page(
    request: HttpRequest, principal: Principal, form: NewProjectForm | None, *, status: int = 200
) -> HttpResponse:
    after = request.GET.get("after", "")[:63].replace("\0", "")
    visible = projects_for(principal)
    # One more than a page, to know whether there are more.
    batch = list(visible.filter(slug__gt=after).order_by("slug")[: PAGE_SIZE + 1])
    page = batch[:PAGE_SIZE]
    memberships = Membership.objects.filter(user=principal.user_id, project__in=page)
    roles = dict(memberships.values_list("project", "role"))
    context: dict[str, Any] = {
        "rows": [(project, roles.get(project.pk, "")) for project in page],
        "projects": visible.filter(archived_at=None).order_by("name", "pk")[:MAX_CHOICES],
        "form": form,
        "after": after,
        "next": batch[PAGE_SIZE - 1].slug if len(batch) > PAGE_SIZE else "",
        "command": "agentops project create SLUG --name NAME",
    }
    return render(request, "accounts/projects.html", context, status=status)
