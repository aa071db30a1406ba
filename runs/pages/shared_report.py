"""The report of a run for anyone with a share link, without login."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from typing import TypeVar

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.middleware.gzip import re_accepts_gzip
from django.shortcuts import render
from django.utils.cache import patch_vary_headers
from django.views.decorators.cache import never_cache

from agentops.accounts import rate_limits
from agentops.base.http.methods import require_safe
from agentops.base.redaction import project_scope
from runs.actions.annotations import share_links
from runs.exports.report_cache import shared_report
from runs.exports.run_report import report_policy

#: Requests per minute for one link.
LINK_LIMIT = 60
R = TypeVar("R", bound=HttpResponseBase)


@never_cache
@require_safe
def by_link(request: HttpRequest, token: str) -> HttpResponseBase:
    """Show the report of a run by a share link. Forged, expired, revoked and unknown links get the same response."""
    rate_limits.count_address(request)
    link = share_links.link_of(token)
    if link is None:
        return _private(render(request, "runs/report/share_link.html", status=404))
    rate_limits.count(request, "share", link.pk.hex, LINK_LIMIT)
    share_links.count_view(link)
    project_scope.add(link.project_id)
    response = _response(request, shared_report(link.run))
    response.headers["Content-Security-Policy"] = f"{report_policy()}; frame-ancestors 'none'"
    return _private(response)


def _response(request: HttpRequest, report: bytes | Iterator[str]) -> HttpResponseBase:
    """Return a response with a report: streamed, or the cached gzip file, which most clients accept."""
    kind = "text/html; charset=utf-8"
    if not isinstance(report, bytes):
        return StreamingHttpResponse(report, content_type=kind)
    if not re_accepts_gzip.search(request.headers.get("Accept-Encoding", "")):
        return HttpResponse(gzip.decompress(report), content_type=kind)
    response = HttpResponse(report, content_type=kind, headers={"Content-Encoding": "gzip"})
    patch_vary_headers(response, ("Accept-Encoding",))
    return response


def _private(response: R) -> R:
    """Keep search engines from indexing the link, and other sites from receiving it."""
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["X-Robots-Tag"] = "noindex, nofollow, noarchive"
    return response
