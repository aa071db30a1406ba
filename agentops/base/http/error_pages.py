"""Error pages for people, and RFC 9457 problem details for programs.

Pages with status 404 have the same text, so that the page of an object that does not exist does not differ from the
page of an object that the user may not see. The user's top bar is omitted if the database is down.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, cast

from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string
from django.utils.module_loading import import_string

from agentops.base.http import log_lines
from agentops.base.redaction.redact import DEFAULT as REDACTOR

log = logging.getLogger(__name__)
#: Prefixes of paths that programs request: the API, OTLP and MCP.
API = ("/api/", "/v1/", "/mcp")
TITLES = {
    400: "Bad request",
    401: "Authentication required",
    403: "Permission denied",
    404: "Not found",
    405: "Method not allowed",
    406: "Not acceptable",
    408: "Request timeout",
    409: "Conflict",
    410: "Deleted",
    413: "Request too large",
    415: "Unsupported media type",
    422: "Invalid input",
    429: "Too many requests",
    500: "Internal server error",
    503: "Service unavailable",
}
#: The text of every page with 404, because the requested object may exist and belong to someone else.
NOT_FOUND = "This page does not exist, or you do not have access to it."


def answer(
    request: HttpRequest, status: int, code: str, text: str, *, also: Mapping[str, Any] | None = None
) -> HttpResponse:
    """Return the error page; for programs JSON, with `also` as further members.

    Secrets are masked, because texts of errors repeat parts of the request, and programs log them.
    """
    text, _ = REDACTOR.clean_text(text)
    is_api = request.path_info.startswith(API)
    context = {
        "title": TITLES.get(status, TITLES[400 if status < 500 else 500]),
        "status": status,
        "code": code,
        "detail": text if is_api or status != 404 else NOT_FOUND,
        "request_id": log_lines.current_request_id(),
    }
    response: HttpResponse
    if is_api:
        problem = {"type": "about:blank", "errors": [], **_clean(also or {}), **context}
        response = JsonResponse(problem, status=status, content_type="application/problem+json")
    else:
        response = HttpResponse(_page(request, status, context), status=status)
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _page(request: HttpRequest, status: int, context: Mapping[str, Any]) -> str:
    # 503 means that the database is down: the top bar cannot be rendered, and trying it would delay the response.
    if status != 503:
        try:
            return render_to_string("error.html", {**_navigation(request), **context})
        except Exception:
            log.exception("cannot render the navigation of an error page")
    return render_to_string("error.html", context)


def _navigation(request: HttpRequest) -> dict[str, Any]:
    """Return the template context of the top bar."""
    # Loaded by name, because accounts are above this package.
    navigation_of = import_string("agentops.accounts.requests.navigation_of")
    return cast("dict[str, Any]", navigation_of(request))


def _clean(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return members of a problem with secrets masked."""
    members = dict(members)
    if "errors" in members:
        members["errors"] = [{**error, "pointer": _clean_pointer(error["pointer"])} for error in members["errors"]]
    cleaned, _ = REDACTOR.clean(members)
    return cast("dict[str, Any]", cleaned)


def _clean_pointer(pointer: str) -> str:
    """Return a JSON pointer with secrets masked. They are searched without its escapes, which could hide them."""
    plain = pointer.replace("~1", "/").replace("~0", "~")
    cleaned, _ = REDACTOR.clean_text(plain)
    return pointer if cleaned == plain else cleaned


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    if isinstance(exception, RequestDataTooBig):
        return answer(request, 413, "body_too_large", "The form data is too large.")
    return answer(request, 400, "bad_request", "The request is malformed.")


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    return answer(request, 403, "forbidden", "You do not have permission to do this.")


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    return answer(request, 404, "not_found", NOT_FOUND)


def csrf_failed(request: HttpRequest, reason: str = "") -> HttpResponse:
    log.warning("csrf: %s at %s", reason, request.path)
    text = "The form has expired or was sent from another site. Go back, reload the page and try again."
    return answer(request, 403, "csrf_failed", text)


def server_error(request: HttpRequest) -> HttpResponse:
    """Respond with 500. Django has logged the traceback with the same request ID."""
    text = "The error was logged. To report it, give the request ID to the operator of this site."
    try:
        return answer(request, 500, "internal_error", text)
    except Exception:
        log.exception("cannot render the error page")
        return HttpResponse(
            f"{text}\n{log_lines.current_request_id()}\n", status=500, content_type="text/plain; charset=utf-8"
        )
