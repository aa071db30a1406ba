"""The page of a run, and the fragments that only it has."""

from __future__ import annotations

import re
from urllib.parse import urlsplit
from uuid import UUID

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme

from agentops.accounts.access import Principal, projects_for
from agentops.accounts.models import audit_models
from agentops.accounts.names import UUID_PATTERN
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_safe
from agentops.base.refusals import InvalidQuery
from runs.access import flow_run_for, run_for
from runs.errors import FlowRunNotFound, RunExpired, RunNotFound
from runs.models import AgentRun
from runs.pages.page_parts import MAX_CHOICES
from runs.pages.run import any_run, facts
from runs.pages.run.any_run import address_of
from runs.pages.run.head import head_of
from runs.pages.run.timeline_page import seq_of, show_of, timeline_context
from runs.pages.timeline.minimap import minimap_at_once, minimap_of
from runs.queries import tab_lists
from timeline.events import Show

#: Filters of the timeline, with their labels.
SHOWS = [(Show.ALL.value, "All"), (Show.MESSAGES.value, "Messages"), (Show.TOOLS.value, "Tools")]
SHOWS += [(Show.ERRORS.value, "Errors")]
#: Values of `event` that select an error: the first one, or the next one after event `after`, wrapping to the first.
FIRST_ERROR, NEXT_ERROR = "first-error", "next-error"
ERRORS = (FIRST_ERROR, NEXT_ERROR)
#: Labels of the numbers of deleted rows, and their tables.
DELETED_ROWS = [
    ("Events", "agent_run_events"),
    ("Messages", "agent_run_messages"),
    ("Tool calls", "agent_run_tool_calls"),
]


@require_safe
def detail(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Show a run, with the part of its timeline selected by `event`, `step`, `before`, `after` and `show`.

    `event=first-error` redirects to the first event with an error, `event=next-error` to the first one after event
    `after`. `call` redirects to a tool call. Status 410 with a summary for a run that retention has deleted.
    """
    principal = principal_of(request)
    incarnation = audit_models.current_incarnation()
    try:
        data = any_run.load(principal, run_id)
    except RunExpired as expired:
        return _render_expired(request, principal, expired)
    except RunNotFound as missing:
        return _to_flow_run(principal, run_id, missing)
    run, show = data.run, show_of(request)
    page = address_of(run)
    if request.GET.get("event") in ERRORS:
        after = seq_of(request, "after") if request.GET["event"] == NEXT_ERROR else None
        seq = tab_lists.next_failure(run.pk, after or 0)
        # Without an error, show the end of the timeline.
        return HttpResponseRedirect(page if seq is None else f"{page}?event={seq}#target")
    if "call" in request.GET:
        return _to_call(request, run, page)
    strip = minimap_at_once(run.pk, run.log.last_seq, run.step_count)
    context = {
        **any_run.run_context(request, data, "detail"),
        **timeline_context(request, run, incarnation, show),
        "minimap": strip,
        "minimap_url": reverse("runs:minimap", args=[run.pk]) if strip.is_pending or not run.state.terminal else "",
        "shows": SHOWS,
        "back": _back(request, run),
    }
    return render(request, "runs/run/detail.html", context)


@require_safe
def head(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Return the content of the page header, as a fragment."""
    principal = principal_of(request)
    data = any_run.load(principal, run_id)
    run_head, run_facts = head_of(request, principal, data), facts.facts_of(data)
    context = {"project": data.run.project, "head": run_head, "facts": run_facts}
    return render(request, "runs/run/_head_changes.html", context)


@require_safe
def minimap(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Return the minimap and the highest step, as a fragment."""
    run = run_for(principal_of(request), run_id, among=AgentRun.objects.select_related("log"))
    context = {
        "page": address_of(run),
        "minimap": minimap_of(run.pk, run.log.last_seq),
        "load_url": "" if run.state.terminal else request.path,
    }
    return render(request, "runs/run/_minimap_changes.html", context)


def _to_flow_run(principal: Principal, flow_run_id: UUID, missing: RunNotFound) -> HttpResponse:
    """Redirect to the flow run with this ID: notifications and e-mails link to runs and flow runs alike."""
    try:
        flow_run = flow_run_for(principal, flow_run_id)
    except FlowRunNotFound:
        raise missing from None
    return HttpResponseRedirect(address_of(flow_run))


def _render_expired(request: HttpRequest, principal: Principal, expired: RunExpired) -> HttpResponse:
    """Show the remaining summary of a run deleted by retention."""
    tombstone = expired.data["tombstone"]
    projects = projects_for(principal).order_by("name", "pk")
    context = {
        "project": projects.filter(tombstones=tombstone["id"]).first(),
        "projects": projects[:MAX_CHOICES],
        "tombstone": tombstone,
        "deleted_rows": [(name, tombstone["rows"].get(table, 0)) for name, table in DELETED_ROWS],
    }
    return render(request, "runs/run/expired.html", context, status=expired.status)


def _to_call(request: HttpRequest, run: AgentRun, page: str) -> HttpResponse:
    """Redirect to the event of a tool call in the timeline, or to the page of the call if no event reports it."""
    text = request.GET["call"]
    if not re.match(UUID_PATTERN, text):
        raise InvalidQuery(f"call must be the ID of a tool call, not {text[:64]!r}")
    seq = tab_lists.event_of_call(run.pk, UUID(text))
    address = reverse("runs:call", args=[run.pk, text]) if seq is None else f"{page}?event={seq}#target"
    return HttpResponseRedirect(address)


def _back(request: HttpRequest, run: AgentRun) -> str:
    """Return the URL of the list with the user's filters: from the query parameter `back`, or from the referrer.

    Never the URL of another site.
    """
    runs = reverse("runs:list", args=[run.project.slug])
    referrer = urlsplit(request.headers.get("Referer") or "")
    back = request.GET.get("back") or ""
    if back.startswith("/") and url_has_allowed_host_and_scheme(back, allowed_hosts=None):
        return back
    if referrer.netloc == request.get_host() and referrer.path == runs and referrer.query:
        return f"{runs}?{referrer.query}"
    return runs
