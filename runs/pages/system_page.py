"""The page of the site's health, for superusers: facts, parts that need attention, and what to do about them."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.accounts.access import Action, may, projects_for
from agentops.accounts.errors import AuthRequired, RoleRequired
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_safe
from runs.models import Sink
from runs.pages import health_facts
from runs.pages.page_parts import split_page
from runs.pages.settings.sink_page import ShownSink, shown_sink
from runs.queries import queue_state, remote_processes, sink_health
from timeline.reading import newest_event

#: Maximum listed sinks, slices, and remote processes.
MAX_LISTED = 50


@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """Show the health of the site, to superusers."""
    principal = principal_of(request)
    if not principal.is_authenticated:
        raise AuthRequired
    if not may(principal, Action.SUPER, None):
        raise RoleRequired("only superusers may see the health of the site")
    workers = health_facts.shown_workers()
    broker = queue_state.read_broker() if settings.REDIS_URL else None
    groups = [
        ("This web process", list(health_facts.readiness())),
        ("Workers and queues", list(health_facts.work_facts(workers, broker))),
        ("Storage and versions", list(health_facts.storage())),
        ("Settings", list(health_facts.configuration())),
    ]
    slices, has_more_slices = split_page(queue_state.active_slices(MAX_LISTED + 1), MAX_LISTED)
    sink_count, troubled = _sinks()
    processes, has_more_processes = split_page(remote_processes.living(at_most=MAX_LISTED + 1), MAX_LISTED)
    context = {
        "groups": [(title, facts) for title, facts in groups if facts],
        "workers": workers,
        "processes": processes,
        "has_more_processes": has_more_processes,
        "queues": list(health_facts.shown_queues(broker)) if broker is not None else [],
        "has_redis": bool(settings.REDIS_URL),
        "slices": slices,
        "has_more_slices": has_more_slices,
        "sink_count": sink_count,
        "troubled": troubled[:MAX_LISTED],
        "unlisted": len(troubled[MAX_LISTED:]),
        "concerns": sum(bool(fact.advice) for _, facts in groups for fact in facts) + len(troubled),
        "projects": projects_for(principal).order_by("name", "pk")[:MAX_LISTED],
    }
    return render(request, "runs/system/system.html", context)


def _sinks() -> tuple[int, list[ShownSink]]:
    """Return the number of sinks of all projects, and the sinks that need attention."""
    newest = newest_event()
    rows = sink_health.with_unread(sink_health.with_health(Sink.objects.order_by("project__slug", "name")))
    sinks = [shown_sink(sink, newest) for sink in rows]
    return len(sinks), [each for each in sinks if each.needs_attention]
