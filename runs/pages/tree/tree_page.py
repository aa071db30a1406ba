"""The tree of a run: its child runs, theirs and so on, with their status, use and cost; kept up to date."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from agentops.http.methods import require_safe
from agentops.projects.access import Action, Principal, actions_of, projects_for
from agentops.projects.requests import principal_of
from runs.access import run_for
from runs.models import AgentRun
from runs.pages.run.banners import pending_commands
from runs.pages.run.cascade import Cascade, cascade_of
from runs.pages.run.head import refusals_of
from runs.pages.run.lineage import parents_of
from runs.pages.run.run_tabs import MAX_CHOICES, tab_links
from runs.pages.runs.run_row import UNTITLED
from runs.pages.timeline.cards import LINE
from runs.pages.tree.tree_query import MAX_OPEN, TreeQuery
from runs.pages.tree.tree_rows import tree_of
from timeline import database_clock
from timeline.display import clip


@require_safe
def tree(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Show the tree of a run."""
    principal = principal_of(request)
    run = run_for(principal, run_id)
    context = {
        "projects": projects_for(principal).order_by("name", "pk")[:MAX_CHOICES],
        "section": "runs",
        "title": clip(run.title, LINE).text or UNTITLED,
        "parents": parents_of(run),
        "page": reverse("runs:detail", args=[run.pk]),
        **tab_links(run, "tree"),
        **_changing(request, principal, run),
    }
    return render(request, "runs/tree.html", context)


@require_safe
def rows(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Return what changes on an open page, as a fragment."""
    principal = principal_of(request)
    return render(request, "runs/_tree_changes.html", _changing(request, principal, run_for(principal, run_id)))


def _changing(request: HttpRequest, principal: Principal, run: AgentRun) -> dict[str, Any]:
    """Return the context of the rows and of the actions."""
    query = TreeQuery.parse(request.GET)
    actions = actions_of(principal, run.project_id)
    run_tree = tree_of(run, query, database_clock.now())
    return {
        "project": run.project,
        "may_manage": Action.MANAGE in actions,
        "run": run,
        "refusals": refusals_of(run, pending_commands(run), allowed=Action.OPERATE in actions),
        "cascade": cascade_of(run) if run_tree.totals.below else Cascade(),
        "tree": run_tree,
        "state": query.pairs(),
        "tree_url": reverse("runs:tree", args=[run.pk]),
        "tree_rows_url": reverse("runs:tree-rows", args=[run.pk]),
        "max_open": MAX_OPEN,
    }
