"""Formats of log lines, and the request ID, which every line of a request and its response contain.

A line is a text with `name=value` pairs at its end, or a JSON object. Control characters and secrets are replaced.
"""

from __future__ import annotations

import copy
import json
import logging
import re
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from uuid_utils.compat import uuid7

from agentops.base.redaction import project_scope
from agentops.base.redaction.redact import EVERYWHERE as REDACTOR

HEADER = "X-Request-ID"

_current: ContextVar[str] = ContextVar("request_id", default="")


def current_request_id() -> str:
    """Return the ID of the request of this thread or task; empty without one."""
    return _current.get()


class RequestId:
    """The outermost middleware: it gives each request an ID.

    An ID that the client sends is ignored, because it could be that of another request.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        # The ID is not reset after the request, because Django logs some errors after all middleware. The next request
        # sets another ID.
        _current.set(uuid7().hex)
        project_scope.clear()
        response = self.get_response(request)
        response.headers[HEADER] = current_request_id()
        return response


# Control characters except the tab: terminals interpret them, and line breaks would forge log lines.
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
#: Attributes that every record has. All others were passed as `extra`.
_USUAL = {*vars(logging.LogRecord("", 0, "", 0, "", None, None)), "message", "asctime", "taskName"}
#: Extras of Django and uvicorn that are whole objects or duplicate the message.
_SKIPPED = {"request", "server_time", "status_code", "sql", "params", "alias", "duration", "color_message"}
_PLAIN = re.compile(r"[^\s\"=]+")


class LogLine(logging.Formatter):
    """Formats a record as one line and its traceback, except for errors of clients (4xx), which have no traceback."""

    def format(self, record: logging.LogRecord) -> str:
        if _is_client_error(record):
            record = copy.copy(record)
            record.exc_info = record.exc_text = None
        # URLs, headers and errors of libraries may contain secrets.
        return REDACTOR.clean_text(super().format(record))[0]

    def formatMessage(self, record: logging.LogRecord) -> str:
        facts = facts_of(record)
        line = super().formatMessage(record)
        return CONTROL.sub(_escape, " ".join([line, *(f"{name}={_text(value)}" for name, value in facts.items())]))


class JsonLine(logging.Formatter):
    """Formats a record as a JSON object: `ts`, `level`, `logger`, `message`, its facts, and (as above) `traceback`."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        document: dict[str, Any] = {
            "ts": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **facts_of(record),
        }
        if record.exc_info and not _is_client_error(record):
            document["traceback"] = self.formatException(record.exc_info)
        # Redacted value by value, so that the line stays JSON.
        return json.dumps({name: _cleaned(value) for name, value in document.items()}, ensure_ascii=True, default=str)


def _is_client_error(record: logging.LogRecord) -> bool:
    return 400 <= getattr(record, "status_code", 0) < 500


def facts_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the facts of a record: its extras, and the ID of the request."""
    extras = {name: value for name, value in vars(record).items() if name not in _USUAL and name not in _SKIPPED}
    request_id = {"request_id": current_request_id()} if current_request_id() else {}
    return {**{name: value for name, value in extras.items() if value is not None}, **request_id}


def _cleaned(value: Any) -> Any:
    return REDACTOR.clean_text(value)[0] if isinstance(value, str) else value


def _text(value: Any) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
