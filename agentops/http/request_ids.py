"""The id of a request: made here, told in the answer, and written into every log line about it."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable
from contextvars import ContextVar

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from uuid_utils.compat import uuid7

from timeline.redaction.redact import DEFAULT as REDACTOR

HEADER = "X-Request-ID"
# All but the tab: what a terminal obeys, and what would begin another line.
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")

_current: ContextVar[str] = ContextVar("request_id", default="")


def current() -> str:
    """The id of the request that this thread or task answers; empty where it has answered none."""
    return _current.get()


class RequestId:
    """The outermost middleware. What a client sends as an id is not taken over: it could name another's lines."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        # Never taken back: Django logs what went wrong after its last middleware. The next request has its own.
        _current.set(uuid7().hex)
        response = self.get_response(request)
        response.headers[HEADER] = current()
        return response


class LogLine(logging.Formatter):
    """A record as one line (and its traceback): nothing that was logged can begin a line of its own, or is a secret."""

    def format(self, record: logging.LogRecord) -> str:
        """Without the traceback of what Django answers with a 4xx: the client's mistakes need none."""
        if 400 <= getattr(record, "status_code", 0) < 500:
            record = copy.copy(record)
            record.exc_info = record.exc_text = None
        # Addresses, headers and errors of others' libraries may have secrets in them.
        return REDACTOR.clean_text(super().format(record))[0]

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = CONTROL.sub(_escaped, super().formatMessage(record))
        return f"{line} request_id={current()}" if current() else line


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
