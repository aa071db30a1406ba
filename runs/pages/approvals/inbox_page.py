"""The inbox: everything that needs a person, oldest first, for one project or for all projects of the user."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.accounts import notifications
from agentops.accounts.access import ANONYMOUS, Action, allowed_pairs, enter, projects_for
from agentops.accounts.errors import AuthRequired
from agentops.accounts.models import Project
from agentops.accounts.requests import principal_of
from agentops.base import database_clock
from agentops.base.http.methods import require_safe
from agentops.base.redaction import project_scope
from agentops.base.refusals import InvalidQuery
from runs.pages.approvals.need_entry import KINDS, entry_of
from runs.queries.overview.needs import FAILED_FOR, NeedKind, NeedPosition, needs
from runs.queries.run_lists.run_order import ListPosition

#: Maximum entries of a page.
PAGE_SIZE = 50
#: Maximum entries of a menu.
MAX_CHOICES = 200
_KINDS = (("", "All"), *((kind.value, title) for kind, (title, _, _) in KINDS.items()))


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show the entries of a project that wait for a person."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.READ)
    may_decide = Action.APPROVE in entry.actions
    context = {
        "project": entry.project,
        "projects": entry.visible.order_by("name", "pk")[:MAX_CHOICES],
        "may_manage": Action.MANAGE in entry.actions,
        "may_decide": may_decide,
        "unread": notifications.unread_count(entry.project.pk, principal.user_id) if principal.user_id else 0,
        **_page(request, "inbox", [entry.project], {entry.project.pk} if may_decide else set()),
    }
    return render(request, "runs/approvals/approvals.html", context)


@require_safe
def everything(request: HttpRequest) -> HttpResponse:
    """Show the entries that wait for a person in all projects that the user may see."""
    principal = principal_of(request)
    if principal == ANONYMOUS:
        raise AuthRequired
    projects = list(projects_for(principal).order_by("name", "pk"))
    pairs = allowed_pairs([(principal, project.pk) for project in projects], Action.APPROVE)
    for project in projects:
        project_scope.add(project.pk)
    context = {
        "projects": projects[:MAX_CHOICES],
        "may_decide": bool(pairs),
        **_page(request, "all", projects, {project_id for _, project_id in pairs}),
    }
    return render(request, "runs/approvals/approvals.html", context)


def _page(request: HttpRequest, name: str, projects: Sequence[Project], decidable: Collection[UUID]) -> dict[str, Any]:
    """Return the entries of the requested page. `decidable`: the projects in which the user may decide.

    The forms of the entries lead back to the page named `name`, with the same kind.
    """
    kind, after = request.GET.get("kind", ""), request.GET.get("after", "")
    if kind not in dict(_KINDS):
        raise InvalidQuery(f"kind must be one of {', '.join(NeedKind)}, not {kind[:64]!r}")
    place = ListPosition.parse(after, "after") if after else None
    # One row more than a page, to know whether there is a next page.
    batch = needs(
        [project.pk for project in projects],
        kinds=[NeedKind(kind)] if kind else list(NeedKind),
        after=NeedPosition(place.created_at, place.run_id) if place is not None else None,
        limit=PAGE_SIZE + 1,
    )
    entries = batch[:PAGE_SIZE]
    return {
        "kinds": _KINDS,
        "kind": kind,
        "next": f"{name}:{kind}" if kind else name,
        "is_first_page": place is None,
        "entries": [entry_of(need, may_decide=need.run.project_id in decidable) for need in entries],
        "later": str(ListPosition.at(entries[-1].since, entries[-1].id)) if len(batch) > PAGE_SIZE else "",
        "now": database_clock.now(),
        "days": FAILED_FOR.days,
    }
