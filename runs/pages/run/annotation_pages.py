"""The views behind the labels, notes and share links of a run page, and the report that a share link shows.

The report needs no login.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from functools import wraps
from typing import TypeVar
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.middleware.gzip import re_accepts_gzip
from django.shortcuts import render, resolve_url
from django.utils.cache import patch_vary_headers
from django.views.decorators.cache import never_cache

from agentops.accounts import rate_limits
from agentops.accounts.access import Action, Principal, may
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import see_other
from agentops.base.http.methods import require_POST, require_safe
from agentops.base.redaction import project_scope
from agentops.base.refusals import Conflict, Forbidden, Invalid
from runs.access import run_for
from runs.actions import run_annotations
from runs.exports.report_cache import shared_report
from runs.exports.run_report import report_policy
from runs.models import AgentRun
from runs.pages.forms import fields

#: Performs a change of a run, and returns the message for the user.
Change = Callable[..., str]


def _change(action: Action, failure: str, anchor: str = "") -> Callable[[Change], Callable[..., HttpResponse]]:
    """Make a POST view of a change. It checks the permission `action`, and shows a refusal after the text `failure`.

    Both redirect to `anchor` on the page of the run.
    """

    def decorate(change: Change) -> Callable[..., HttpResponse]:
        @require_POST
        @wraps(change)
        def view(request: HttpRequest, run_id: UUID, **url_args: UUID) -> HttpResponse:
            principal = principal_of(request)
            run = run_for(principal, run_id, action)
            try:
                messages.success(request, change(request, principal, run, **url_args))
            except (Forbidden, Conflict, Invalid) as refusal:
                messages.error(request, f"{failure}: {refusal}.")
            return see_other(resolve_url("runs:detail", run.pk) + anchor)

        return view

    return decorate


@_change(Action.OPERATE, "Labels not changed")
def labels(request: HttpRequest, principal: Principal, run: AgentRun) -> str:
    """Add the label `add`, or remove the label `remove`."""
    added, removed = fields.line(request.POST.get("add", "")), request.POST.get("remove", "")
    if not added and not removed:
        raise Invalid("enter a label", pointer="/add")
    add, remove = [added] if added else [], [removed] if removed else []
    run_annotations.change_labels(run.pk, by=principal, add=add, remove=remove)
    return f"Label “{added}” added." if added else "Label removed."


@_change(Action.OPERATE, "Note not added", "#notes")
def add_note(request: HttpRequest, principal: Principal, run: AgentRun) -> str:
    """Add a note."""
    run_annotations.add_note(run, fields.text(request.POST.get("text", "")), by=principal)
    return "Note added."


@_change(Action.OPERATE, "Note not changed", "#notes")
def change_note(request: HttpRequest, principal: Principal, run: AgentRun, note_id: UUID) -> str:
    """Change the text of a note; with `do=delete`, delete it."""
    if request.POST.get("do") == "delete":
        manages = may(principal, Action.MANAGE, run.project_id)
        run_annotations.delete_note(run, note_id, by=principal, manages=manages)
        return "Note deleted."
    run_annotations.edit_note(run, note_id, fields.text(request.POST.get("text", "")), by=principal)
    return "Note changed."


@_change(Action.MANAGE, "Run not shared")
def share(request: HttpRequest, principal: Principal, run: AgentRun) -> str:
    """Create a share link."""
    try:
        days = fields.integer(request.POST.get("days", "")) or run_annotations.DEFAULT_DAYS
    except ValueError as error:
        raise Invalid(f"days: {error}", pointer="/days") from None
    run_annotations.share(run, days, by=principal)
    return f"Link created. It expires in {days} day{'' if days == 1 else 's'}: copy it under Export."


@_change(Action.MANAGE, "Link not revoked")
def revoke(request: HttpRequest, principal: Principal, run: AgentRun, link_id: UUID) -> str:
    """Revoke a share link."""
    run_annotations.revoke(run, link_id, by=principal)
    return "Link revoked."


#: Requests per minute for one link.
LINK_LIMIT = 60
R = TypeVar("R", bound=HttpResponseBase)


@never_cache
@require_safe
def by_link(request: HttpRequest, token: str) -> HttpResponseBase:
    """Show the report of a run by a share link. Forged, expired, revoked and unknown links get the same response."""
    rate_limits.count_address(request)
    link = run_annotations.link_of(token)
    if link is None:
        return _with_privacy_headers(render(request, "runs/report/share_link.html", status=404))
    rate_limits.count(request, "share", link.pk.hex, LINK_LIMIT)
    run_annotations.count_view(link)
    project_scope.add(link.project_id)
    response = _report_response(request, shared_report(link.run))
    response.headers["Content-Security-Policy"] = f"{report_policy()}; frame-ancestors 'none'"
    return _with_privacy_headers(response)


def _report_response(request: HttpRequest, report: bytes | Iterator[str]) -> HttpResponseBase:
    """Return a response with a report. Bytes are a cached gzip file, which most clients accept; texts are streamed."""
    kind = "text/html; charset=utf-8"
    if not isinstance(report, bytes):
        return StreamingHttpResponse(report, content_type=kind)
    if not re_accepts_gzip.search(request.headers.get("Accept-Encoding", "")):
        return HttpResponse(gzip.decompress(report), content_type=kind)
    response = HttpResponse(report, content_type=kind, headers={"Content-Encoding": "gzip"})
    patch_vary_headers(response, ("Accept-Encoding",))
    return response


def _with_privacy_headers(response: R) -> R:
    """Keep search engines from indexing the page, and other sites from receiving its URL. Return `response`."""
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["X-Robots-Tag"] = "noindex, nofollow, noarchive"
    return response
