"""Request IDs: created here, sent with the response, and written into every log line (log_lines.py) of the request."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from uuid_utils.compat import uuid7

from agentops.base.redaction import project_scope

HEADER = "X-Request-ID"

_current: ContextVar[str] = ContextVar("request_id", default="")


def current() -> str:
    """Return the ID of the request of this thread or task; empty without one."""
    return _current.get()


class RequestId:
    """The outermost middleware.

    An ID sent by the client is ignored, because it could point to another request's log lines.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        # Never reset, because Django logs errors after the last middleware. The next request sets its own.
        _current.set(uuid7().hex)
        project_scope.clear()
        response = self.get_response(request)
        response.headers[HEADER] = current()
        return response
