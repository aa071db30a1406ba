"""The inbox: approvals, questions of agents and unknown outcomes of tool calls, the oldest first.

Of one project, or of all that a person may see.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.http.methods import require_safe
from agentops.projects.access import ANONYMOUS, Action, allowed_pairs, enter, projects_for
from agentops.projects.errors import AuthRequired, InvalidQuery
from agentops.projects.models import Project
from agentops.projects.requests import principal_of
from runs.pages.approvals.waiting_entry import entry_of
from runs.queries.json_lists import RowSpan
from runs.queries.waiting_items import ItemKind, waiting_items
from timeline.redaction import project_scope

#: Entries of a page.
PAGE_SIZE = 50
#: Maximum entries of a menu.
MAX_CHOICES = 200
_KINDS = (
    ("", "All"),
    (ItemKind.APPROVAL.value, "Approvals"),
    (ItemKind.QUESTION.value, "Questions"),
    (ItemKind.UNKNOWN_OUTCOME.value, "Unknown outcomes"),
)


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show what waits for a person in a project."""
    entry = enter(principal_of(request), project, Action.READ)
    may_decide = Action.APPROVE in entry.actions
    context = {
        "project": entry.project,
        "projects": entry.visible.order_by("name", "pk")[:MAX_CHOICES],
        "may_manage": Action.MANAGE in entry.actions,
        "may_decide": may_decide,
        "next": "inbox",
        **_page(request, [entry.project], {entry.project.pk} if may_decide else set()),
    }
    return render(request, "runs/approvals.html", context)


@require_safe
def everything(request: HttpRequest) -> HttpResponse:
    """Show what waits for a person in all projects that the user may see."""
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
        "next": "all",
        **_page(request, projects, {project_id for _, project_id in pairs}),
    }
    return render(request, "runs/approvals.html", context)


def _page(request: HttpRequest, projects: Sequence[Project], decidable: Collection[UUID]) -> dict[str, Any]:
    """Return the entries of the page that was requested. `decidable`: the projects in which the user may decide."""
    kind, after = request.GET.get("kind", ""), _id(request.GET.get("after", ""))
    if kind not in dict(_KINDS):
        raise InvalidQuery(f"kind must be one of {', '.join(ItemKind)}, not {kind[:64]!r}")
    # One more than a page, to know whether there are later ones.
    span = RowSpan((after.hex,) if after else (), backward=True, limit=PAGE_SIZE + 1)
    kinds = [ItemKind(kind)] if kind else list(ItemKind)
    batch = waiting_items([project.pk for project in projects], span, kinds=kinds)
    items = batch[:PAGE_SIZE]
    return {
        "kinds": _KINDS,
        "kind": kind,
        "is_first_page": after is None,
        "entries": [entry_of(item, may_decide=item.run.project_id in decidable) for item in items],
        "later": items[-1].id if len(batch) > PAGE_SIZE else None,
    }


def _id(text: str) -> UUID | None:
    try:
        return UUID(text) if text else None
    except ValueError:
        raise InvalidQuery(f"after must be the ID of an entry, not {text[:64]!r}") from None
