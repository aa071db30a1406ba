"""The timeline on the page of a run or flow run: its context, the rows that a request selects, and the stream."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.csrf import csrf_exempt

from agentops.accounts.models import audit_models
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_GET, require_safe
from agentops.base.http.request_origins import refuse_foreign
from agentops.base.refusals import InvalidQuery
from runs.pages.run.any_run import AnyRun, address_of, live_context, run_of
from runs.pages.timeline import window
from runs.pages.timeline.live_cards import HTML
from runs.pages.timeline.window import Window
from timeline.events import Show
from timeline.live.access_watch import Permit
from timeline.live.streams import StreamCursor, cursor_of, log_stream

CURSOR_HEADER = "Timeline-Cursor"
#: A number that fits into a column of 64 bits.
NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)


@require_safe
def rows(request: HttpRequest, **url: UUID) -> HttpResponse:
    """Return the rows before event `before` or after event `after`, by default the newest, as a fragment.

    It links to the rows before and after them, unless the page has these already. If it ends with the newest event, the
    header `Timeline-Cursor` says where the page's stream continues.
    """
    # Read before the run, as for `live_context`.
    incarnation = audit_models.current_incarnation()
    run, show = run_of(principal_of(request), url), show_of(request)
    before, after = seq_of(request, "before"), seq_of(request, "after")
    if before is not None:
        part = window.before(run.pk, before, run.log.last_seq, show, joins=True)
    elif after is not None:
        part = window.after(run.pk, after, run.log.last_seq, show)
    else:
        part = window.newest(run.pk, run.log.last_seq, show)
    context = {
        **_rows_context(run, show),
        "items": part.items,
        "older": None if after is not None else part.older,
        "newer": None if before is not None else part.newer,
    }
    response = render(request, "runs/run/_timeline_rows.html", context)
    if before is None and part.at_end:
        response.headers[CURSOR_HEADER] = str(StreamCursor(part.last_seq, incarnation))
    return response


# Exempt, so that a POST gets status 405 and not a CSRF error.
@csrf_exempt
@require_GET
def stream(request: HttpRequest, **url: UUID) -> HttpResponse:
    """Stream the rows after the page's last row, until the run has ended."""
    refuse_foreign(request)
    principal = principal_of(request)
    run = run_of(principal, url)
    permit = Permit(principal, run.project_id, request.session.session_key)
    return log_stream(run.log, cursor_of(request), HTML, permit, ended=run.state.terminal)


def timeline_context(request: HttpRequest, run: AnyRun, incarnation: int, show: Show) -> dict[str, Any]:
    """Return the context of a timeline: the rows that the URL selects, and where the page's stream continues."""
    timeline, notice = _window_of(request, run.pk, run.log.last_seq, show)
    return {"window": timeline, "notice": notice, **live_context(run, incarnation), **_rows_context(run, show)}


def show_of(request: HttpRequest) -> Show:
    """Return the filter `show` of the timeline. Raises InvalidQuery for an unknown one."""
    try:
        return Show(request.GET.get("show") or Show.ALL)
    except ValueError:
        raise InvalidQuery(f"show must be one of {', '.join(Show)}") from None


def _rows_context(run: AnyRun, show: Show) -> dict[str, Any]:
    return {"page": address_of(run), "rows_url": address_of(run, "rows"), "show": show.value}


def _window_of(request: HttpRequest, log_id: UUID, last_seq: int, show: Show) -> tuple[Window, str]:
    """Return the rows selected by `event`, `step`, `before` or `after`, by default the newest, and a notice.

    The notice names a requested event or step that does not exist; otherwise it is empty. Read `last_seq` before any
    row, so that a stream from there neither misses nor repeats an event.
    """
    event, step = seq_of(request, "event"), seq_of(request, "step", "the number of a step")
    before, after = seq_of(request, "before"), seq_of(request, "after")
    notice = ""
    if event is not None and not 1 <= event <= last_seq:
        notice = f"Event {event} does not exist: the last event is {last_seq}. Showing the newest events."
    elif event is None and step is not None:
        event = window.start_of_step(log_id, step)
        if event is None:
            notice = f"This run has no step {step}. Showing the newest events."
    if notice:
        return window.newest(log_id, last_seq, show), notice
    if event is not None:
        return window.around(log_id, event, last_seq, show, step=step), ""
    if before is not None:
        return window.before(log_id, before, last_seq, show), ""
    if after is not None:
        return window.after(log_id, after, last_seq, show), ""
    return window.newest(log_id, last_seq, show), ""


def chosen_event(request: HttpRequest, last_seq: int, *, default: int) -> tuple[int, str]:
    """Return the event that the URL selects with `seq`, or the nearest one, and a notice if `seq` does not exist."""
    requested = seq_of(request, "seq")
    if requested is None:
        return default, ""
    seq = min(max(requested, 1), last_seq)
    return seq, "" if seq == requested else f"Event {requested} does not exist. Showing event {seq}."


def seq_of(request: HttpRequest, name: str, what: str = "the sequence number of an event") -> int | None:
    """Return the number in a query parameter; None if it is missing or empty. Raises InvalidQuery for other texts."""
    text = request.GET.get(name)
    if not text:
        return None
    if not NUMBER.fullmatch(text):
        raise InvalidQuery(f"{name} must be {what}, not {text[:64]!r}")
    return int(text)
