"""The timeline on the page of a run or flow run: its context, the rows that the page loads, and the stream."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from agentops.accounts import incarnations
from agentops.accounts.requests import principal_of
from agentops.base.http.foreign_origin import refuse_foreign
from agentops.base.http.methods import require_GET, require_safe
from agentops.base.refusals import InvalidQuery
from runs.pages.run.any_run import AnyRun, address_of, live_context, run_of
from runs.pages.timeline.fragments import rows_fragment, window_of
from runs.pages.timeline.live_cards import HTML
from timeline.access import Permit
from timeline.events import Show
from timeline.live.cursor import cursor_of
from timeline.live.response import log_stream


@require_safe
def rows(request: HttpRequest, **url: UUID) -> HttpResponse:
    """Return the rows before event `before` or after event `after`, by default the newest, as a fragment."""
    incarnation = incarnations.current()
    run, show = run_of(principal_of(request), url), show_of(request)
    return rows_fragment(request, run.log, incarnation, _rows_context(run, show), show)


# Exempt, so that a POST gets status 405 and not a CSRF error.
@csrf_exempt
@require_GET
def stream(request: HttpRequest, **url: UUID) -> HttpResponse:
    """Stream the rows after the page's last one, until the run has ended."""
    refuse_foreign(request)
    principal = principal_of(request)
    run = run_of(principal, url)
    permit = Permit(principal, run.project_id, request.session.session_key)
    return log_stream(run.log, cursor_of(request), HTML, permit, ended=run.state.terminal)


def timeline_context(request: HttpRequest, run: AnyRun, incarnation: int, show: Show) -> dict[str, Any]:
    """Return the part of the timeline selected by `event`, `step`, `before` or `after`, and its place in the stream."""
    timeline, notice = window_of(request, run.pk, run.log.last_seq, show)
    return {
        "window": timeline,
        "notice": notice,
        **live_context(run, incarnation),
        **_rows_context(run, show),
    }


def show_of(request: HttpRequest) -> Show:
    """Return the filter of the timeline. Raise InvalidQuery for an unknown one."""
    try:
        return Show(request.GET.get("show") or Show.ALL)
    except ValueError:
        raise InvalidQuery(f"show must be one of {', '.join(Show)}") from None


def _rows_context(run: AnyRun, show: Show) -> dict[str, Any]:
    return {"page": address_of(run), "rows_url": address_of(run, "rows"), "show": show.value}
