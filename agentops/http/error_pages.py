"""Error pages, and RFC 9457 problem details for programs.

Rendered without the request and without a query, so they work if the database is down and are the same for everyone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, cast

from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string

from agentops.http import request_ids
from timeline.redaction.redact import DEFAULT as REDACTOR

log = logging.getLogger(__name__)
API = "/api/"
TITLES = {
    400: "This request cannot be used",
    401: "Who are you?",
    403: "This is not for you to do",
    404: "Nothing is here",
    405: "This cannot be done here",
    406: "Not in this form",
    408: "Too slow",
    409: "Not as things are",
    410: "It is no longer here",
    413: "Too large",
    415: "Not of this kind",
    422: "Not as it was given",
    429: "Too often",
    500: "Something went wrong on our side",
    503: "Not available just now",
}
#: The same text always: the requested object may exist and belong to someone else.
NOTHING_HERE = "There is no such page, or it is not yours to see."


def answer(
    request: HttpRequest, status: int, code: str, text: str, *, also: Mapping[str, Any] | None = None
) -> HttpResponse:
    """Return the error page, or JSON for the API. `also` are further members of the JSON.

    Secrets are masked, because errors repeat parts of the request and end up in logs.
    """
    text, _ = REDACTOR.clean_text(text)
    for_program = request.path_info.startswith(API)
    shown = {
        "title": TITLES.get(status, TITLES[400 if status < 500 else 500]),
        "status": status,
        "code": code,
        "detail": text if for_program or status != 404 else NOTHING_HERE,
        "request_id": request_ids.current(),
    }
    response: HttpResponse
    if for_program:
        problem = {"type": "about:blank", "errors": [], **_cleaned(also or {}), **shown}
        response = JsonResponse(problem, status=status, content_type="application/problem+json")
    else:
        response = HttpResponse(render_to_string("error.html", shown), status=status)
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _cleaned(also: Mapping[str, Any]) -> dict[str, Any]:
    facts = dict(also)
    if "errors" in facts:
        facts["errors"] = [{**error, "pointer": _cleaned_pointer(error["pointer"])} for error in facts["errors"]]
    cleaned, _ = REDACTOR.clean(facts)
    return cast("dict[str, Any]", cleaned)


def _cleaned_pointer(pointer: str) -> str:
    """Return a JSON pointer without secrets, which its escapes could hide."""
    plain = pointer.replace("~1", "/").replace("~0", "~")
    cleaned, _ = REDACTOR.clean_text(plain)
    return pointer if cleaned == plain else cleaned


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    if isinstance(exception, RequestDataTooBig):
        return answer(request, 413, "body_too_large", "What was sent is larger than a form may be.")
    return answer(request, 400, "bad_request", "The server cannot make sense of what was sent.")


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    return answer(request, 403, "forbidden", "You may not do this.")


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    return answer(request, 404, "not_found", NOTHING_HERE)


def csrf_failed(request: HttpRequest, reason: str = "") -> HttpResponse:
    log.warning("csrf: %s at %s", reason, request.path)
    text = "The form is out of date, or was not ours. Go back, load the page again, and repeat what you did."
    return answer(request, 403, "csrf_failed", text)


def server_error(request: HttpRequest) -> HttpResponse:
    """Answer 500. Django has logged the traceback with the same request ID."""
    text = "The error was logged. Whoever runs this site finds it by the request id."
    try:
        return answer(request, 500, "internal_error", text)
    except Exception:
        log.exception("the error page itself cannot be shown")
        return HttpResponse(f"{text}\n{request_ids.current()}\n", status=500, content_type="text/plain; charset=utf-8")
