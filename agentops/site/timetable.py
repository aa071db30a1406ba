"""The clock's settings: the periodic tasks of the site, their intervals, and their queue."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from agentops.base.broker.queues import FIRST, UPKEEP

#: The priorities of upkeep tasks: the first is for tasks that take milliseconds.
QUICK, SLOW = FIRST, 5
#: Seconds after which a message is dropped, unless its interval is longer, so that a worker that was away does not get
#: hundreds of them. Not less, because the clocks of two machines differ.
EXPIRES_S = 60.0


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """A task that the clock sends every `every_s` seconds."""

    every_s: float
    priority: int = SLOW
    queue: str = UPKEEP


def upkeep(*, alerts_s: float, sends_mail: bool) -> dict[str, PlannedTask]:
    """Return the upkeep tasks by name.

    Code that creates work also sends its task at once (runs.lifecycle.wake), so the clock only covers the rest: retries
    that become due, and work whose message was lost.
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
    return {name: _entry(name, task.every_s) for name, task in tasks.items()}


def _entry(name: str, every_s: float) -> dict[str, Any]:
    # The schedule tables store whole seconds.
    every_s = max(math.ceil(every_s), 1)
    return {"task": name, "schedule": every_s, "options": {"expire_seconds": max(every_s, int(EXPIRES_S))}}


def routes_of(tasks: dict[str, PlannedTask]) -> dict[str, dict[str, Any]]:
    """Return CELERY_TASK_ROUTES, which also apply to tasks sent by processes other than the clock."""
    return {name: {"queue": task.queue, "priority": task.priority} for name, task in tasks.items()}
