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

from agentops.http.methods import require_GET, require_safe
from agentops.projects import incarnations
from agentops.projects.access import Principal, projects_for
from agentops.projects.requests import principal_of
from runs.access import run_for
from runs.errors import RunExpired, RunRefusal
from runs.models import AgentRun
from runs.pages.run import facts
from runs.pages.run.head import head_of
from runs.pages.timeline import window
from runs.pages.timeline.live_cards import HTML
from runs.pages.timeline.window import Show, Window
from timeline.access import Permit
from timeline.live.cursor import StreamCursor, cursor_of
from timeline.live.response import log_stream, refuse_foreign

MAX_CHOICES = 200
SHOWS = [(Show.ALL.value, "All"), (Show.MESSAGES.value, "Messages"), (Show.TOOLS.value, "Tools")]
SHOWS += [(Show.ERRORS.value, "Errors")]
FIRST_ERROR = "first-error"
#: Labels of the row counts of a tombstone.
DELETED_ROWS = [
    ("Events", "agent_run_events"),
    ("Messages", "agent_run_messages"),
    ("Tool calls", "agent_run_tool_calls"),
]
SEQ = re.compile(r"[0-9]{1,18}", re.ASCII)


class InvalidRunQuery(RunRefusal):
    """A URL of a run page with an invalid query parameter."""

    code = "invalid_query"
    status = 400


@require_safe
def detail(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Show a run, with the part of its timeline selected by `event`, `before` and `show`.

    Status 410 with a summary for a run that was deleted by retention.
    """
    principal = principal_of(request)
    # Read before the run: if the database is restored in between, the cursor must be an old one.
    incarnation = incarnations.current()
    try:
        data = _load(principal, run_id)
    except RunExpired as expired:
        return _render_expired(request, principal, expired)
    run, show = data.run, _show(request)
    page = reverse("runs:detail", args=[run.pk])
    if request.GET.get("event") == FIRST_ERROR:
        seq = window.first_error(run.pk)
        # Without an error, show the end of the timeline.
        return HttpResponseRedirect(page if seq is None else f"{page}?event={seq}#target")
    timeline, notice = _window(request, run, show)
    run_head = head_of(request, principal, data)
    context = {
        "project": run.project,
        "projects": projects_for(principal).order_by("name", "pk")[:MAX_CHOICES],
        "head": run_head,
        "may_manage": run_head.may_manage,
        "facts": facts.facts_of(data),
        "window": timeline,
        "cursor": StreamCursor(timeline.last_seq, incarnation),
        "notice": notice,
        "live": timeline.at_end and not run.state.terminal,
        "stream_url": reverse("runs:stream", args=[run.pk]),
        "shows": SHOWS,
        "tree_url": reverse("runs:tree", args=[run.pk]),
        "replay_url": reverse("runs:replay", args=[run.pk]),
        "search_url": f"{reverse('runs:search', args=[run.project.slug])}?run={run.pk}",
        "back": _back(request, run),
        **_urls(run, show),
    }
    return render(request, "runs/detail.html", context)


@require_safe
def rows(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Return the rows before event `before`, as a fragment."""
    run = _load(principal_of(request), run_id).run
    show, seq = _show(request), seq_of(request, "before")
    if seq is None:
        raise InvalidRunQuery("before must be the sequence number of an event")
    older = window.before(run.pk, seq, run.log.last_seq, show, joins=True)
    return render(request, "runs/_older_rows.html", {"window": older, **_urls(run, show)})


@require_safe
def head(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Return the content of the page header, as a fragment."""
    principal = principal_of(request)
    data = _load(principal, run_id)
    context = {"project": data.run.project, "head": head_of(request, principal, data)}
    return render(request, "runs/_head_changes.html", context)


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


def _load(principal: Principal, run_id: UUID) -> facts.RunData:
    return facts.run_data_of(run_for(principal, run_id, among=facts.with_facts(AgentRun.objects.all())))


def _render_expired(request: HttpRequest, principal: Principal, expired: RunExpired) -> HttpResponse:
    """Show the summary that is kept of a run deleted by retention."""
    tombstone = expired.data["tombstone"]
    projects = projects_for(principal).order_by("name", "pk")
    context = {
        "project": projects.filter(tombstones=tombstone["id"]).first(),
        "projects": projects[:MAX_CHOICES],
        "tombstone": tombstone,
        "deleted_rows": [(name, tombstone["rows"].get(table, 0)) for name, table in DELETED_ROWS],
    }
    return render(request, "runs/expired.html", context, status=expired.status)


def _window(request: HttpRequest, run: AgentRun, show: Show) -> tuple[Window, str]:
    """Return the requested rows, and a notice if the requested event does not exist.

    The log's last sequence number was read with the run, before any row, so that a stream from there neither misses
    nor repeats an event.
    """
    last_seq = run.log.last_seq
    event, before = seq_of(request, "event"), seq_of(request, "before")
    if event is not None and 1 <= event <= last_seq:
        return window.around(run.pk, event, last_seq, show), ""
    if event is not None:
        notice = f"Event {event} does not exist: the last event is {last_seq}. Showing the newest events."
        return window.newest(run.pk, last_seq, show), notice
    if before is not None:
        return window.before(run.pk, before, last_seq, show), ""
    return window.newest(run.pk, last_seq, show), ""


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
        raise InvalidRunQuery(f"show must be one of {', '.join(Show)}") from None


def seq_of(request: HttpRequest, name: str) -> int | None:
    """Return the sequence number in a query parameter, or None. Raise InvalidRunQuery unless it has 1 to 18 digits."""
    text = request.GET.get(name)
    if not text:
        return None
    if not SEQ.fullmatch(text):
        raise InvalidRunQuery(f"{name} must be the sequence number of an event, not {text[:64]!r}")
    return int(text)


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
