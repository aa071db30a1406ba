"""Formats of a log line: text that ends with `name=value` pairs, or a JSON object.

Records cannot forge lines or reveal secrets.
"""

from __future__ import annotations

import copy
import json
import logging
import re
import time
from typing import Any

from agentops.base.http import request_ids
from agentops.base.redaction.redact import EVERYWHERE as REDACTOR

# Control characters except the tab: terminals interpret them, and line breaks would forge log lines.
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
#: Attributes of every record. All others were passed as `extra` and describe the event.
_USUAL = {*vars(logging.LogRecord("", 0, "", 0, "", None, None)), "message", "asctime", "taskName"}
#: Extras of Django and uvicorn that are whole objects or duplicate the message.
_SKIPPED = {"request", "server_time", "status_code", "sql", "params", "alias", "duration", "color_message"}
_PLAIN = re.compile(r"[^\s\"=]+")


class LogLine(logging.Formatter):
    """Formats a record as one line and its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the record, without the traceback of a 4xx, which is a client error."""
        if 400 <= getattr(record, "status_code", 0) < 500:
            record = copy.copy(record)
            record.exc_info = record.exc_text = None
        # URLs, headers and errors of libraries may contain secrets.
        return REDACTOR.clean_text(super().format(record))[0]

    def formatMessage(self, record: logging.LogRecord) -> str:
        facts = facts_of(record)
        line = super().formatMessage(record)
        return CONTROL.sub(_escape, " ".join([line, *(f"{name}={_text(value)}" for name, value in facts.items())]))


class JsonLine(logging.Formatter):
    """Formats a record as a JSON object: `ts`, `level`, `logger`, `message`, its facts, and `traceback`."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the record, without the traceback of a 4xx, which is a client error."""
        is_refusal = 400 <= getattr(record, "status_code", 0) < 500
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        document: dict[str, Any] = {
            "ts": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **facts_of(record),
        }
        if record.exc_info and not is_refusal:
            document["traceback"] = self.formatException(record.exc_info)
        # Redacted value by value, so that the line stays JSON.
        return json.dumps({name: _cleaned(value) for name, value in document.items()}, ensure_ascii=True, default=str)


def facts_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the facts of a record: its extras, and the ID of the request."""
    extras = {name: value for name, value in vars(record).items() if name not in _USUAL and name not in _SKIPPED}
    request_id = {"request_id": request_ids.current()} if request_ids.current() else {}
    return {**{name: value for name, value in extras.items() if value is not None}, **request_id}


def _cleaned(value: Any) -> Any:
    return REDACTOR.clean_text(value)[0] if isinstance(value, str) else value


def _text(value: Any) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
