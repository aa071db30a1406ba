"""The start page of a project: entries that need a person, running runs, and totals of the last days."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render, resolve_url
from django.urls import reverse

from agentops.accounts.access import Action, EnteredProject, enter, project_for
from agentops.accounts.models import Project
from agentops.accounts.requests import principal_of
from agentops.base import database_clock
from agentops.base.http.methods import require_POST, require_safe
from agentops.base.refusals import Refusal
from runs import demo
from runs.models import AgentRun, FlowRun
from runs.pages import commands
from runs.pages.agents.agents_page import page_context
from runs.pages.approvals.need_entry import entry_of
from runs.pages.overview.site_lines import live_lines, still_lines
from runs.pages.overview.window_view import (
    RANGES,
    RunWindow,
    agent_rows,
    charts_of,
    flow_rows,
    model_rows,
    total_row,
)
from runs.pages.runs.listed_run import listed_runs, read
from runs.pages.runs.row_markup import markup_of
from runs.pages.runs.run_row import rows_of
from runs.queries.overview import recent_calls
from runs.queries.overview.flow_sums import ended_by_flow
from runs.queries.overview.needs import FAILED_FOR, count_of, label_of, needs
from runs.statuses import RunStatus

#: Maximum entries of the two lists.
MAX_NEEDS, MAX_RUNNING = 8, 8


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show the start page. For a project without runs, show how to create the first run."""
    entry = enter(principal_of(request), project, Action.READ)
    owner = entry.project
    watch = commands.watch(owner) if Action.OPERATE in entry.actions else ""
    context = {**page_context(entry, "overview"), "watch": watch}
    if not _has_runs(owner):
        steps = commands.first_steps(owner, request.build_absolute_uri("/").rstrip("/"))
        return render(request, "runs/overview/empty.html", {**context, "steps": steps})
    context |= _live(entry)
    return render(request, "runs/overview/overview.html", {**context, **_sums(owner)})


@require_safe
def live(request: HttpRequest, project: str) -> HttpResponse:
    """Return the parts that change on an open page.

    `empty`: the page has no runs, and is reloaded once there are some.
    """
    entry = enter(principal_of(request), project, Action.READ)
    if "empty" in request.GET:
        return HttpResponse(status=204, headers={"HX-Refresh": "true"} if _has_runs(entry.project) else {})
    context = {**page_context(entry, "overview"), **_live(entry)}
    return render(request, "runs/overview/_changes.html", context)


@require_POST
def start_demo(request: HttpRequest, project: str) -> HttpResponse:
    """Create the demo agent in the project, start a run of it, and redirect to the run."""
    principal = principal_of(request)
    owner = project_for(principal, project, Action.CONFIGURE)
    try:
        run = demo.start_one(principal, owner)
    except Refusal as refusal:
        messages.error(request, f"Not started: {refusal}.")
        return HttpResponse(status=303, headers={"Location": resolve_url("runs:overview", owner.slug)})
    return HttpResponse(status=303, headers={"Location": resolve_url("runs:detail", run.pk)})


def _has_runs(project: Project) -> bool:
    """Return whether the project has a run or a flow run. A flow run may have no runs."""
    return any(rows.objects.filter(project=project).exists() for rows in (AgentRun, FlowRun))


def _live(entry: EnteredProject) -> dict[str, Any]:
    """Return the parts that change on an open page. The number of queries does not depend on the number of rows."""
    project, now = entry.project, database_clock.now()
    found = needs([project.pk], limit=MAX_NEEDS)
    running = AgentRun.objects.filter(project=project, status=RunStatus.RUNNING)
    newest = read(listed_runs().filter(project=project, status=RunStatus.RUNNING)[:MAX_RUNNING])
    may_decide = Action.APPROVE in entry.actions
    return {
        "needs": [entry_of(need, may_decide=may_decide) for need in found],
        "need_counts": count_of(project.pk),
        "may_decide": may_decide,
        "days": FAILED_FOR.days,
        "running": markup_of(rows_of(newest, now), boxes=False),
        "running_count": label_of(running[:100].count()),
        "running_url": f"{reverse('runs:list', args=[project.slug])}?status=running",
        "lines": list(live_lines(project, now)),
    }


def _sums(project: Project) -> dict[str, Any]:
    """Return the totals of the last 24 hours and 7 days, and two charts."""
    now = database_clock.now()
    window = RunWindow.read(project, RANGES["7d"], now)
    ids = recent_calls.newest_ended(project, now - window.range.length)
    return {
        "totals": [
            total_row("Last 24 hours", window.within(RANGES["24h"].length)),
            total_row("Last 7 days", window.runs),
        ],
        "agents": agent_rows(window.runs),
        "flows": flow_rows(ended_by_flow(project, now - window.range.length)),
        "models": model_rows(ids),
        "model_runs": len(ids) if len(ids) == recent_calls.MAX_RUNS else 0,
        "charts": charts_of(window),
        "window": window,
        "still_lines": list(still_lines(project, now)),
        "as_of": now,
    }
