"""Error pages, and RFC 9457 problem details for programs.

They have the user's top bar, unless the database is down. Nothing else depends on the request, so the page for an
unknown object equals the page for an invisible one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, cast

from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string
from django.utils.module_loading import import_string

from agentops.base.http import request_ids
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
#: Always the same text: the requested object may exist and belong to someone else.
NOT_FOUND = "This page does not exist, or you do not have access to it."


def answer(
    request: HttpRequest, status: int, code: str, text: str, *, also: Mapping[str, Any] | None = None
) -> HttpResponse:
    """Return the error page, or JSON for the API. `also` are further members of the JSON.

    Secrets are masked, because errors repeat parts of the request and end up in logs.
    """
    text, _ = REDACTOR.clean_text(text)
    is_api = request.path_info.startswith(API)
    context = {
        "title": TITLES.get(status, TITLES[400 if status < 500 else 500]),
        "status": status,
        "code": code,
        "detail": text if is_api or status != 404 else NOT_FOUND,
        "request_id": request_ids.current(),
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
    # Without a database, the top bar cannot be rendered, and must not delay the response.
    if status != 503:
        try:
            return render_to_string("error.html", {**_navigation(request), **context})
        except Exception:
            log.exception("cannot render the navigation of an error page")
    return render_to_string("error.html", context)


def _navigation(request: HttpRequest) -> dict[str, Any]:
    """Return the context of the top bar. Loaded by name: projects are above this package."""
    navigation_of = import_string("agentops.accounts.error_navigation.navigation_of")
    return cast("dict[str, Any]", navigation_of(request))


def _clean(also: Mapping[str, Any]) -> dict[str, Any]:
    facts = dict(also)
    if "errors" in facts:
        facts["errors"] = [{**error, "pointer": _clean_pointer(error["pointer"])} for error in facts["errors"]]
    cleaned, _ = REDACTOR.clean(facts)
    return cast("dict[str, Any]", cleaned)


def _clean_pointer(pointer: str) -> str:
    """Return a JSON pointer without secrets, which its escapes could hide."""
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
        return HttpResponse(f"{text}\n{request_ids.current()}\n", status=500, content_type="text/plain; charset=utf-8")
