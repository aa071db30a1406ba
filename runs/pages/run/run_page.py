"""The page of a run, the fragments that it loads, and its event stream."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.csrf import csrf_exempt

from agentops.accounts import incarnations
from agentops.accounts.access import Principal, projects_for
from agentops.accounts.names import UUID_PATTERN
from agentops.accounts.requests import principal_of
from agentops.base.http.foreign_origin import refuse_foreign
from agentops.base.http.methods import require_GET, require_safe
from agentops.base.refusals import InvalidQuery
from runs.access import flow_run_for, run_for
from runs.errors import FlowRunNotFound, RunExpired, RunNotFound
from runs.models import AgentRun
from runs.pages.run import facts, run_tabs
from runs.pages.run.head import head_of
from runs.pages.timeline.fragments import rows_fragment, seq_of, window_of
from runs.pages.timeline.live_cards import HTML
from runs.pages.timeline.minimap import minimap_at_once, minimap_of
from runs.queries.run_tabs import event_list, failures_list
from timeline.access import Permit
from timeline.events import Show
from timeline.live.cursor import StreamCursor, cursor_of
from timeline.live.response import log_stream

SHOWS = [(Show.ALL.value, "All"), (Show.MESSAGES.value, "Messages"), (Show.TOOLS.value, "Tools")]
SHOWS += [(Show.ERRORS.value, "Errors")]
#: Values of `event` that select an error: the first one, or the next one after event `after`, wrapping to the first.
FIRST_ERROR, NEXT_ERROR = "first-error", "next-error"
ERRORS = (FIRST_ERROR, NEXT_ERROR)
#: Labels of the row counts of a deleted run.
DELETED_ROWS = [
    ("Events", "agent_run_events"),
    ("Messages", "agent_run_messages"),
    ("Tool calls", "agent_run_tool_calls"),
]


@require_safe
def detail(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Show a run, with the part of its timeline selected by `event`, `step`, `before`, `after` and `show`.

    `event=first-error` redirects to the first event with an error, `next-error` to the first one after event `after`.
    Status 410 with a summary for a run that was deleted by retention.
    """
    principal = principal_of(request)
    # Read before the run: if the database is restored in between, the cursor must be an old one.
    incarnation = incarnations.current()
    try:
        data = run_tabs.load(principal, run_id)
    except RunExpired as expired:
        return _render_expired(request, principal, expired)
    except RunNotFound as missing:
        return _to_flow_run(principal, run_id, missing)
    run, show = data.run, _show(request)
    page = reverse("runs:detail", args=[run.pk])
    if request.GET.get("event") in ERRORS:
        after = seq_of(request, "after") if request.GET["event"] == NEXT_ERROR else None
        seq = failures_list.next_failure(run.pk, after or 0)
        # Without an error, show the end of the timeline.
        return HttpResponseRedirect(page if seq is None else f"{page}?event={seq}#target")
    if "call" in request.GET:
        return _to_call(request, run, page)
    timeline, notice = window_of(request, run.pk, run.log.last_seq, show)
    mapped = minimap_at_once(run.pk, run.log.last_seq, run.step_count)
    context = {
        **run_tabs.run_context(request, data, "detail"),
        "window": timeline,
        # The end of the log, not of the rows: a page whose rows end earlier loads the rest, and then continues from
        # there.
        "cursor": StreamCursor(run.log.last_seq, incarnation),
        "notice": notice,
        "minimap": mapped,
        "minimap_url": reverse("runs:minimap", args=[run.pk]) if mapped.is_pending or not run.state.terminal else "",
        "live": not run.state.terminal,
        "stream_url": reverse("runs:stream", args=[run.pk]),
        "shows": SHOWS,
        "back": _back(request, run),
        **_urls(run, show),
    }
    return render(request, "runs/detail.html", context)


@require_safe
def rows(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Return the rows before event `before` or after event `after`, by default the newest, as a fragment."""
    incarnation = incarnations.current()
    run, show = run_tabs.load(principal_of(request), run_id).run, _show(request)
    return rows_fragment(request, run.log, incarnation, _urls(run, show), show)


@require_safe
def head(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Return the content of the page header, as a fragment."""
    principal = principal_of(request)
    data = run_tabs.load(principal, run_id)
    run_head, run_facts = head_of(request, principal, data), facts.facts_of(data)
    context = {"project": data.run.project, "head": run_head, "facts": run_facts}
    return render(request, "runs/_head_changes.html", context)


@require_safe
def minimap(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Return the minimap and the highest step, as a fragment."""
    run = run_for(principal_of(request), run_id, among=AgentRun.objects.select_related("log"))
    context = {
        "page": reverse("runs:detail", args=[run.pk]),
        "minimap": minimap_of(run.pk, run.log.last_seq),
        "load_url": "" if run.state.terminal else request.path,
    }
    return render(request, "runs/_minimap_changes.html", context)


# Exempt, so that a POST gets status 405 and not a CSRF error.
@csrf_exempt
@require_GET
def stream(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Stream the rows after the page's last one, until the run has ended."""
    refuse_foreign(request)
    principal = principal_of(request)
    run = run_for(principal, run_id, among=AgentRun.objects.select_related("log"))
    permit = Permit(principal, run.project_id, request.session.session_key)
    return log_stream(run.log, cursor_of(request), HTML, permit, ended=run.state.terminal)


def _to_flow_run(principal: Principal, flow_run_id: UUID, missing: RunNotFound) -> HttpResponse:
    """Redirect to the flow run with this ID: notifications and e-mails link to runs and flow runs alike."""
    try:
        flow_run = flow_run_for(principal, flow_run_id)
    except FlowRunNotFound:
        raise missing from None
    return HttpResponseRedirect(reverse("runs:flow-run", args=[flow_run.pk]))


def _render_expired(request: HttpRequest, principal: Principal, expired: RunExpired) -> HttpResponse:
    """Show the remaining summary of a run deleted by retention."""
    tombstone = expired.data["tombstone"]
    projects = projects_for(principal).order_by("name", "pk")
    context = {
        "project": projects.filter(tombstones=tombstone["id"]).first(),
        "projects": projects[: run_tabs.MAX_CHOICES],
        "tombstone": tombstone,
        "deleted_rows": [(name, tombstone["rows"].get(table, 0)) for name, table in DELETED_ROWS],
    }
    return render(request, "runs/expired.html", context, status=expired.status)


def _to_call(request: HttpRequest, run: AgentRun, page: str) -> HttpResponse:
    """Redirect to the event of a tool call in the timeline, or to its page if no event reports it."""
    text = request.GET["call"]
    if not re.match(UUID_PATTERN, text):
        raise InvalidQuery(f"call must be the ID of a tool call, not {text[:64]!r}")
    seq = event_list.event_of_call(run.pk, UUID(text))
    address = reverse("runs:call", args=[run.pk, text]) if seq is None else f"{page}?event={seq}#target"
    return HttpResponseRedirect(address)


def _urls(run: AgentRun, show: Show) -> dict[str, Any]:
    return {
        "page": reverse("runs:detail", args=[run.pk]),
        "rows_url": reverse("runs:rows", args=[run.pk]),
        "show": show.value,
    }


def _show(request: HttpRequest) -> Show:
    try:
        return Show(request.GET.get("show") or Show.ALL)
    except ValueError:
        raise InvalidQuery(f"show must be one of {', '.join(Show)}") from None


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
