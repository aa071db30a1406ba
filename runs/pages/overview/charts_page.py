"""The charts of a project over 24 hours, 7 days or 30 days."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.accounts.access import Action, enter
from agentops.accounts.requests import principal_of
from agentops.base import database_clock
from agentops.base.http.methods import require_safe
from agentops.base.refusals import InvalidQuery
from runs.pages.agents.agents_page import page_context
from runs.pages.overview.window_view import (
    RANGES,
    RunWindow,
    agent_rows,
    charts_of,
    flow_rows,
    model_rows,
    tool_rows,
    total_row,
)
from runs.queries.overview import recent_calls
from runs.queries.overview.flow_sums import ended_by_flow


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show the charts of the range in the URL, 7 days by default, each with a table of the same numbers."""
    entry = enter(principal_of(request), project, Action.READ)
    name = request.GET.get("range", "7d")
    if name not in RANGES:
        raise InvalidQuery(f"range must be one of {', '.join(RANGES)}, not {name[:16]!r}")
    now = database_clock.now()
    window = RunWindow.read(entry.project, RANGES[name], now)
    ids = recent_calls.newest_ended(entry.project, now - window.range.length)
    context = {
        **page_context(entry, "overview"),
        "ranges": RANGES.values(),
        "window": window,
        "totals": [total_row(f"Last {window.range.label}", window.runs)],
        "charts": charts_of(window),
        "agents": agent_rows(window.runs),
        "flows": flow_rows(ended_by_flow(entry.project, now - window.range.length)),
        "models": model_rows(ids),
        "tools": tool_rows(ids),
        "model_runs": len(ids) if len(ids) == recent_calls.MAX_RUNS else 0,
        "as_of": now,
    }
    return render(request, "runs/overview/charts.html", context)
