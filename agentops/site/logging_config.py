"""Logging of the site's processes: one line per message, on standard error, as text or JSON."""

from __future__ import annotations

import logging
from typing import Any

#: Loggers that are too verbose: Celery logs every message, every tick of the clock and every connection,
#: django-eventstream every listener, HTTP clients and the MCP SDK every request, watchfiles every change; vendors'
#: libraries log the whole conversation at level DEBUG.
TALKATIVE = (
    *("celery.app.trace", "celery.worker.strategy", "celery.worker.consumer.connection", "celery.beat"),
    "django_celery_beat.schedulers",
    *("django_eventstream", "watchfiles", "mcp"),
    *("httpx", "httpx2", "httpcore", "httpcore2", "openai", "anthropic", "groq", "mistralai"),
)


LINES = "agentops.base.http.log_lines"
FORMATS: dict[str, dict[str, Any]] = {
    "text": {
        "()": "agentops.base.http.log_lines.LogLine",
        "format": "%(asctime)s %(levelname)s %(name)s %(message)s",
    },
    "json": {"()": "agentops.base.http.log_lines.JsonLine"},
}


def log_level(raw: str) -> str:
    """Return the name of a level in capitals. Raises ValueError."""
    name = raw.strip().upper()
    if name not in logging.getLevelNamesMapping():
        raise ValueError(name)
    return name


def logging_config(level: str, form: str = "text") -> dict[str, Any]:
    """Return Django's setting LOGGING. `level`: the lowest logged level, such as `INFO`. `form`: a key of FORMATS."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": FORMATS[form]},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {name: {"level": "WARNING"} for name in TALKATIVE},
    }
