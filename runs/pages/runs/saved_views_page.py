"""Saved views of the run list: the row of links above the list, and the forms that save, change and delete them."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.urls import reverse

from agentops.accounts.access import Action, Principal, project_for
from agentops.accounts.models import Project
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import see_other
from agentops.base.http.methods import require_POST
from agentops.base.refusals import Refusal
from runs.actions import saved_views
from runs.models import SavedView
from runs.pages.forms import fields
from runs.pages.runs.list_query import ListQuery
from timeline.display import clean


@dataclass(frozen=True)
class ViewLink:
    """A saved view as a link."""

    id: UUID
    name: str
    url: str
    is_current: bool
    is_own: bool
    is_shared: bool
    is_default: bool


@dataclass(frozen=True)
class ShownViews:
    """The saved views that a user sees above the list."""

    links: list[ViewLink]
    #: The URL of the list without filters.
    all_url: str
    #: The query of the page, as a view stores it.
    query: str
    #: The URL of the default view if the request has no parameters; empty otherwise.
    redirect_to: str = ""

    @property
    def current(self) -> ViewLink | None:
        """Return the view that the page shows, or None."""
        return next((link for link in self.links if link.is_current), None)


def shown_views(project: Project, principal: Principal, request: HttpRequest) -> ShownViews:
    """Return the views of a user for the list that the request shows. One query."""
    url = reverse("runs:list", args=[project.slug])
    query = ListQuery.parse(request.GET).first_page().query_string().removeprefix("?")
    views = list(saved_views.views_of(project, principal.user_id))
    links = [_link(view, url, query, principal) for view in views]
    default = next((link for link in links if link.is_default and link.is_own), None)
    redirect_to = default.url if default and default.url != url and not request.META.get("QUERY_STRING") else ""
    return ShownViews(links, f"{url}?all=1" if default else url, query, redirect_to)


def _link(view: SavedView, url: str, query: str, principal: Principal) -> ViewLink:
    return ViewLink(
        id=view.pk,
        name=clean(view.name),
        url=f"{url}?{view.query}" if view.query else f"{url}?all=1",
        is_current=sorted(parse_qsl(view.query)) == sorted(parse_qsl(query)),
        is_own=view.owner_id == principal.user_id,
        is_shared=view.is_shared,
        is_default=view.is_default,
    )


@require_POST
def save(request: HttpRequest, project: str) -> HttpResponse:
    """Save the query of the list under a name. A view with this name is replaced."""
    principal = principal_of(request)
    owner = project_for(principal, project, Action.READ)
    form = request.POST
    # Parsed and serialized, so that the stored query has no position and no unknown parameters.
    query = ListQuery.parse(QueryDict(form.get("query", ""))).first_page().query_string().removeprefix("?")
    try:
        view = saved_views.save_view(
            owner,
            by=principal,
            name=fields.line(form.get("name", "")),
            query=query,
            is_shared=bool(form.get("shared")),
            is_default=bool(form.get("default")),
        )
        messages.success(request, f"View “{clean(view.name)}” saved.")
    except Refusal as refusal:
        messages.error(request, f"View not saved: {refusal}.")
    return _back(owner, query)


@require_POST
def change(request: HttpRequest, project: str, view_id: UUID) -> HttpResponse:
    """Rename a view, share it, or make it the default view; with `do=delete`, delete it."""
    principal = principal_of(request)
    owner = project_for(principal, project, Action.READ)
    form = request.POST
    if form.get("do") == "delete":
        saved_views.delete_view(owner, view_id, by=principal)
        messages.success(request, "View deleted.")
        return _back(owner, "")
    try:
        view = saved_views.change_view(
            owner,
            view_id,
            by=principal,
            name=fields.line(form.get("name", "")),
            is_shared=bool(form.get("shared")),
            is_default=bool(form.get("default")),
        )
    except Refusal as refusal:
        if refusal.status == 404:
            raise
        messages.error(request, f"View not changed: {refusal}.")
        return _back(owner, "")
    messages.success(request, f"View “{clean(view.name)}” changed.")
    return _back(owner, view.query)


def _back(project: Project, query: str) -> HttpResponse:
    """Redirect to the list with the query of a view."""
    return see_other(f"{reverse('runs:list', args=[project.slug])}?{query or 'all=1'}")
