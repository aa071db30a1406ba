"""The page of the site's health: healthy parts, parts that need attention, and what to do."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.accounts.access import Action, may, projects_for
from agentops.accounts.errors import AuthRequired, RoleRequired
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_safe
from runs.models import Sink
from runs.pages.sinks.shown_sink import ShownSink, shown
from runs.pages.system import shown_workers, site_facts, work_facts
from runs.queries import broker_state, queue_state, sink_health
from timeline.settled import newest_event

#: Maximum listed sinks, and slices.
MAX_LISTED = 50


@dataclass(frozen=True)
class FactGroup:
    """Facts under a heading."""

    title: str
    facts: list[site_facts.Fact]


@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """Show the health of the site, to superusers."""
    principal = principal_of(request)
    if not principal.is_authenticated:
        raise AuthRequired
    if not may(principal, Action.SUPER, None):
        raise RoleRequired("only superusers may see the health of the site")
    workers = shown_workers.shown_workers()
    broker = broker_state.read() if settings.REDIS_URL else None
    groups = [
        FactGroup("This web process", list(site_facts.readiness())),
        FactGroup("Workers and queues", list(work_facts.facts(workers, broker))),
        FactGroup("Storage and versions", list(site_facts.storage())),
        FactGroup("Settings", list(site_facts.configuration())),
    ]
    slices = queue_state.active_slices(MAX_LISTED + 1)
    sinks, troubled = _sinks()
    context = {
        "groups": [group for group in groups if group.facts],
        "workers": workers,
        "queues": list(shown_workers.shown_queues(broker)) if broker is not None else [],
        "has_redis": bool(settings.REDIS_URL),
        "slices": slices[:MAX_LISTED],
        "has_more_slices": len(slices) > MAX_LISTED,
        "sink_count": sinks,
        "troubled": troubled[:MAX_LISTED],
        "unlisted": len(troubled[MAX_LISTED:]),
        "concerns": sum(bool(fact.advice) for group in groups for fact in group.facts) + len(troubled),
        "projects": projects_for(principal).order_by("name", "pk")[:MAX_LISTED],
    }
    return render(request, "runs/system/system.html", context)


def _sinks() -> tuple[int, list[ShownSink]]:
    """Return the number of sinks of all projects, and the sinks that need attention."""
    newest = newest_event()
    rows = sink_health.with_unread(sink_health.with_health(Sink.objects.order_by("project__slug", "name")))
    sinks = [shown(sink, newest) for sink in rows]
    return len(sinks), [each for each in sinks if each.needs_attention]
