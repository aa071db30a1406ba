"""Schedules of a recording, and a database clock that a test sets. May import the product."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from uuid_utils.compat import uuid7

from agentops.accounts.access import SYSTEM
from agentops.accounts.models import Project
from agentops.base import database_clock
from runs.actions.schedules.schedule_changes import add_schedule
from runs.models import Agent, AgentRun, Schedule, ScheduleStart
from tests.support.factories import make_agent


class SetClock:
    """The product's database clock, set by a test. Each thread may have an offset."""

    def __init__(self, patch: pytest.MonkeyPatch, at: datetime) -> None:
        self.at = at
        self._of_thread = threading.local()
        patch.setattr(database_clock, "now", self.now)

    def now(self) -> datetime:
        return self.at + getattr(self._of_thread, "error", timedelta())

    def set(self, text: str) -> None:
        """Set the time in UTC, in the form "2026-03-29 01:00"."""
        self.at = datetime.fromisoformat(text).replace(tzinfo=UTC)

    def move(self, **later: float) -> None:
        self.at += timedelta(**later)

    def be_wrong_in_this_thread(self, error: timedelta) -> None:
        self._of_thread.error = error


def make_schedule(project: Project, agent: Agent | None = None, **values: Any) -> Schedule:
    """Create a schedule that runs each minute, by default of an agent that plays a recording."""
    if "flow" not in values:
        agent = agent or Agent.objects.filter(project=project, slug="player").first()
        values["agent"] = (agent or make_agent(project, slug="player")).slug
    timing = {} if "every_s" in values else {"cron": "* * * * *"}
    return add_schedule(project, {"name": "nightly", **timing, **values}, by=SYSTEM)


def fill_schedule(project: Project, number: int, text: str) -> Schedule:
    """Create a paused schedule, with one start of each outcome."""
    schedule = make_schedule(project, name=f"Schedule {number}", prompt="Look.", is_enabled=False)
    Schedule.objects.filter(pk=schedule.pk).update(prompt=text, created_by=text[:200])
    for minute, outcome in enumerate(ScheduleStart.Outcome.values):
        at = datetime(2026, 6, 1, 9, minute, tzinfo=UTC)
        run_id = AgentRun.objects.filter(project=project).values_list("pk", flat=True).first() or uuid7()
        started = {"run_id": run_id}
        refused = {"reason": "code", "detail": text[:300]}
        ScheduleStart.objects.create(
            schedule=schedule, due_at=at, outcome=outcome, decided_at=at, **(started if minute == 0 else refused)
        )
    return schedule


def outcomes(schedule: Schedule) -> list[tuple[str, str]]:
    """Return the due times and outcomes of a schedule, in chronological order: ("09:00", "started")."""
    starts = ScheduleStart.objects.filter(schedule=schedule).order_by("pk")
    return [(f"{start.due_at:%H:%M}" if start.due_at else "now", start.outcome) for start in starts]


def runs_of(schedule: Schedule) -> list[AgentRun]:
    return list(AgentRun.objects.filter(schedule=schedule).order_by("pk"))
