"""The sinks of a project, with their health."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.accounts.access import Action, enter
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_safe
from runs.models import Sink
from runs.pages.agents.agents_page import page_context
from runs.pages.sinks.shown_sink import shown, target_of
from runs.queries import sink_health
from runs.telemetry.sink_changes import MAX_SINKS
from timeline.settled import newest_event


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show the sinks by name. For sinks of the whole site, show only the target."""
    entry = enter(principal_of(request), project, Action.CONFIGURE)
    own = Sink.objects.filter(project=entry.project).order_by("name")
    newest = newest_event()
    of_site = Sink.objects.filter(project=None, is_enabled=True).order_by("name")
    context = {
        **page_context(entry, "settings"),
        "rows": [shown(sink, newest) for sink in sink_health.with_unread(sink_health.with_health(own))],
        "of_site": [(sink, target_of(sink)) for sink in of_site],
        "max_sinks": MAX_SINKS,
    }
    return render(request, "runs/sinks/sinks.html", context)
