"""Settings that are computed: the log (lines on standard error), the periodic tasks, and the OpenID provider."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

from agentops.base.backing_services import FIRST, UPKEEP

#: Loggers that are too verbose: Celery logs every message, every tick of the clock and every connection,
#: django-eventstream every listener, HTTP clients and the MCP SDK every request, watchfiles every change; vendors'
#: libraries log the whole conversation at level DEBUG.
TALKATIVE = (
    *("celery.app.trace", "celery.worker.strategy", "celery.worker.consumer.connection", "celery.beat"),
    "django_celery_beat.schedulers",
    *("django_eventstream", "watchfiles", "mcp"),
    *("httpx", "httpx2", "httpcore", "httpcore2", "openai", "anthropic", "groq", "mistralai"),
)


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


#: The priorities of upkeep tasks. QUICK is for tasks that take milliseconds.
QUICK, SLOW = FIRST, 5
#: Seconds after which a message expires, or the interval of its task if that is longer. Otherwise a worker that was
#: away would get hundreds of messages. Not fewer seconds, because the clocks of two machines differ.
EXPIRES_S = 60


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """A task that the clock sends every `every_s` seconds."""

    every_s: float
    priority: int = SLOW
    queue: str = UPKEEP


def upkeep(*, alerts_s: float, sends_mail: bool) -> dict[str, PlannedTask]:
    """Return the upkeep tasks by name.

    Code that creates work also sends its task at once (runs.lifecycle.wake). The clock is for retries that become due,
    and for work whose message was lost.
    """
    tasks = {
        "runs.settle_traces": PlannedTask(5, QUICK),
        "runs.advance_flows": PlannedTask(5, QUICK),
        "runs.start_due": PlannedTask(5, QUICK),
        "runs.evaluate_alerts": PlannedTask(alerts_s, QUICK),
        "runs.export_events": PlannedTask(5),
        "runs.index_texts": PlannedTask(10),
        "runs.send_alerts": PlannedTask(10),
        "runs.import_uploads": PlannedTask(10),
        "runs.delete_projects": PlannedTask(10),
        # Checked every minute, because some sites run for an hour a day; executed once a day and once an hour.
        "runs.apply_retention": PlannedTask(60),
        "runs.end_abandoned": PlannedTask(60),
    }
    return tasks | {"runs.send_mail": PlannedTask(10)} if sends_mail else tasks


def schedule_of(tasks: dict[str, PlannedTask]) -> dict[str, dict[str, Any]]:
    """Return CELERY_BEAT_SCHEDULE. An entry has the name of its task."""
    schedule = {}
    for name, task in tasks.items():
        # The schedule tables store whole seconds.
        every_s = max(math.ceil(task.every_s), 1)
        schedule[name] = {"task": name, "schedule": every_s, "options": {"expire_seconds": max(every_s, EXPIRES_S)}}
    return schedule


def routes_of(tasks: dict[str, PlannedTask]) -> dict[str, dict[str, Any]]:
    """Return CELERY_TASK_ROUTES, which also applies to tasks that other processes than the clock send."""
    return {name: {"queue": task.queue, "priority": task.priority} for name, task in tasks.items()}


def openid_providers(issuer: str, *, name: str, client_id: str, secret: str) -> dict[str, Any]:
    """Return SOCIALACCOUNT_PROVIDERS; empty without an issuer.

    The ID of the provider is its issuer: stored connections are void once the settings name another one.
    """
    if not issuer:
        return {}
    app = {"provider_id": issuer, "name": name, "client_id": client_id, "secret": secret}
    return {"openid_connect": {"OAUTH_PKCE_ENABLED": True, "APPS": [{**app, "settings": {"server_url": issuer}}]}}
