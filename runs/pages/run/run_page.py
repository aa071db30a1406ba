"""The page of a run, its parts that are fetched on their own, and its stream."""

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
#: Of what a tombstone counts, what people know by name.
REMOVED = [("Events", "agent_run_events"), ("Messages", "agent_run_messages"), ("Tool calls", "agent_run_tool_calls")]
SEQ = re.compile(r"[0-9]{1,18}", re.ASCII)


class InvalidRunQuery(RunRefusal):
    """An address of a run's page that no link of ours has."""

    code = "invalid_query"
    status = 400


@require_safe
def detail(request: HttpRequest, run_id: UUID) -> HttpResponse:
    principal = principal_of(request)
    # Before the run: should the database be restored in between, the cursor is one of before.
    incarnation = incarnations.current()
    try:
        found = _found(principal, run_id)
    except RunExpired as gone:
        return _expired(request, principal, gone)
    run, show = found.run, _show(request)
    page = reverse("runs:detail", args=[run.pk])
    if request.GET.get("event") == FIRST_ERROR:
        seq = window.first_error(run.pk)
        # Without one there is nothing to jump to: the page's end is as good a place as any.
        return HttpResponseRedirect(page if seq is None else f"{page}?event={seq}#target")
    shown, notice = _window(request, run, show)
    context = {
        "project": run.project,
        "projects": projects_for(principal).order_by("name", "pk")[:MAX_CHOICES],
        "head": head_of(request, principal, found),
        "facts": facts.facts_of(found),
        "window": shown,
        "cursor": StreamCursor(shown.last_seq, incarnation),
        "notice": notice,
        "live": shown.at_end and not run.state.terminal,
        "stream_url": reverse("runs:stream", args=[run.pk]),
        "shows": SHOWS,
        "back": _back(request, run),
        **_places(run, show),
    }
    return render(request, "runs/detail.html", context)


@require_safe
def rows(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Older rows, to be put above those that begin with event `before`."""
    run = _found(principal_of(request), run_id).run
    show, seq = _show(request), _seq(request, "before")
    if seq is None:
        raise InvalidRunQuery("before must be the seq of an event")
    older = window.before(run.pk, seq, run.log.last_seq, show, joins=True)
    return render(request, "runs/_older_rows.html", {"window": older, **_places(run, show)})


@require_safe
def head(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """The inside of the page's head, as this reader may see it now."""
    principal = principal_of(request)
    found = _found(principal, run_id)
    context = {"project": found.run.project, "head": head_of(request, principal, found)}
    return render(request, "runs/_head_changes.html", context)


# Changes nothing, so it asks for no token; otherwise a POST would be told of the token and not of the method.
@csrf_exempt
@require_GET
def stream(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """The rows that come after the page's last one, until the run has ended."""
    refuse_foreign(request)
    principal = principal_of(request)
    run = run_for(principal, run_id, among=AgentRun.objects.select_related("log"))
    permit = Permit(principal, run.project_id, request.session.session_key)
    return log_stream(run.log, cursor_of(request), HTML, permit, ended=run.state.terminal)


def _found(principal: Principal, run_id: UUID) -> facts.Loaded:
    return facts.loaded(run_for(principal, run_id, among=facts.with_facts(AgentRun.objects.all())))


def _expired(request: HttpRequest, principal: Principal, gone: RunExpired) -> HttpResponse:
    """What is left of a run that was removed."""
    stone = gone.data["tombstone"]
    projects = projects_for(principal).order_by("name", "pk")
    context = {
        "project": projects.filter(tombstones=stone["id"]).first(),
        "projects": projects[:MAX_CHOICES],
        "stone": stone,
        "removed": [(name, stone["rows"].get(table, 0)) for name, table in REMOVED],
    }
    return render(request, "runs/expired.html", context, status=gone.status)


def _window(request: HttpRequest, run: AgentRun, show: Show) -> tuple[Window, str]:
    """The rows that were asked for, and what to say where they cannot be had. The log's last seq was read with the
    run, before any row, so a stream that goes on from there misses nothing and repeats nothing."""
    last_seq = run.log.last_seq
    event, before = _seq(request, "event"), _seq(request, "before")
    if event is not None and 1 <= event <= last_seq:
        return window.around(run.pk, event, last_seq, show), ""
    if event is not None:
        notice = f"There is no event {event}: the log has {last_seq}. These are the newest."
        return window.newest(run.pk, last_seq, show), notice
    if before is not None:
        return window.before(run.pk, before, last_seq, show), ""
    return window.newest(run.pk, last_seq, show), ""


def _places(run: AgentRun, show: Show) -> dict[str, Any]:
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


def _seq(request: HttpRequest, name: str) -> int | None:
    """A seq of the address; only as many digits as any database's number has."""
    text = request.GET.get(name)
    if not text:
        return None
    if not SEQ.fullmatch(text):
        raise InvalidRunQuery(f"{name} must be the seq of an event")
    return int(text)


def _back(request: HttpRequest, run: AgentRun) -> str:
    """The list as the reader left it: named in the address, or where they come from; never another site."""
    runs = reverse("runs:list", args=[run.project.slug])
    came_from = urlsplit(request.headers.get("Referer") or "")
    asked = request.GET.get("back") or ""
    if asked.startswith("/") and url_has_allowed_host_and_scheme(asked, allowed_hosts=None):
        return asked
    if came_from.netloc == request.get_host() and came_from.path == runs and came_from.query:
        return f"{runs}?{came_from.query}"
    return runs
