"""Request IDs: created here, sent with the answer, and written into every log line of the request."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable
from contextvars import ContextVar

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from uuid_utils.compat import uuid7

from timeline.redaction import project_scope
from timeline.redaction.redact import EVERYWHERE as REDACTOR

HEADER = "X-Request-ID"
# Control characters except the tab: terminals interpret them, and line breaks would forge log lines.
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")

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


class LogLine(logging.Formatter):
    """Formats a record as one line and its traceback. Records cannot forge lines, and contain no secrets."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the record, without the traceback of a 4xx: a client's mistake needs none."""
        if 400 <= getattr(record, "status_code", 0) < 500:
            record = copy.copy(record)
            record.exc_info = record.exc_text = None
        # URLs, headers and errors of libraries may contain secrets.
        return REDACTOR.clean_text(super().format(record))[0]

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = CONTROL.sub(_escape, super().formatMessage(record))
        return f"{line} request_id={current()}" if current() else line


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
