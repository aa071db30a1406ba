"""A minutely schedule for a day, with two beats and two workers whose messages are lost, late or duplicated, whose
clocks differ, and which are killed. Each due time has one run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from agentops.accounts.models import Project
from runs import chaos
from runs.actions.schedules.due_times import Cron, after
from runs.actions.schedules.schedule_changes import values_of
from runs.actions.schedules.starting import start_due, start_due_schedules
from runs.models import AgentRun, Schedule, ScheduleStart
from tests.support.factories import make_project
from tests.support.project_rows import SetClock, make_schedule

BERLIN = "Europe/Berlin"
LOST, DOUBLED, LATE, KILLED = 0.4, 0.2, 0.3, 0.08
#: Longest time without a sweep, because its worker was killed.
SWEEP_S = 45


class Killed(BaseException):
    """Raised where the process is killed; no code catches it."""


class Site:
    """Two workers on one database, each with its connection and a wrong clock."""

    def __init__(self, clock: SetClock, seed: str) -> None:
        self.dice = random.Random(seed)
        self.clock = clock
        self.kills = 0
        self.workers = [ThreadPoolExecutor(1), ThreadPoolExecutor(1)]
        for worker, error in zip(self.workers, (timedelta(), timedelta(seconds=-7)), strict=True):
            worker.submit(clock.be_wrong_in_this_thread, error).result()

    def point(self, name: str) -> None:
        if name.startswith("schedule.") and self.dice.random() < KILLED:
            self.kills += 1
            raise Killed

    def look(self, schedule: Schedule, *, is_sweep: bool) -> None:
        """Make both workers check for due schedules at the same moment, after a message or in a sweep."""
        acts = [start_due_schedules if is_sweep and each == self.dice.randrange(2) else start_due for each in range(2)]
        calls = [
            worker.submit(act) if act is start_due_schedules else worker.submit(act, schedule.pk)
            for worker, act in zip(self.workers, acts, strict=True)
        ]
        for call in calls:
            assert isinstance(call.exception(), Killed | None)

    def close(self) -> None:
        for worker in self.workers:
            worker.submit(lambda: connection.close()).result()  # noqa: PLW0108 - that of its thread
            worker.shutdown()


@pytest.fixture
def project(transactional_db: None) -> Project:
    return make_project("alpha")


def moments(dice: random.Random, begin: datetime, minutes: int) -> Iterator[tuple[datetime, bool]]:
    """Return when a worker checks, in order, and whether in a sweep. Each beat's clock is wrong by up to a minute."""
    found: list[tuple[datetime, bool]] = []
    for beat in range(2):
        error = timedelta(seconds=dice.uniform(-60, 60))
        for minute in range(minutes):
            for _ in range(1 + (dice.random() < DOUBLED)):
                delay = timedelta(seconds=dice.uniform(0, 200) if dice.random() < LATE else beat)
                if dice.random() >= LOST:
                    found.append((begin + timedelta(minutes=minute) + error + delay, False))
    at = begin
    while at < begin + timedelta(minutes=minutes):
        found.append((at, True))
        at += timedelta(seconds=dice.uniform(1, SWEEP_S))
    return iter(sorted(found))


@pytest.mark.every_database
@pytest.mark.parametrize(
    ("name", "day", "minutes"),
    [
        # The hour before each change, and the hour after it.
        ("spring", datetime(2026, 3, 29, 0, 30, tzinfo=UTC), 60),
        ("autumn", datetime(2026, 10, 25, 0, 15, tzinfo=UTC), 90),
        pytest.param("a day", datetime(2026, 10, 24, 22, tzinfo=UTC), 25 * 60, marks=pytest.mark.slow),
        pytest.param("a short day", datetime(2026, 3, 28, 23, tzinfo=UTC), 23 * 60, marks=pytest.mark.slow),
    ],
)
def test_each_due_time_has_one_run(
    project: Project, monkeypatch: pytest.MonkeyPatch, name: str, day: datetime, minutes: int
) -> None:
    clock = SetClock(monkeypatch, day)
    schedule = make_schedule(project, cron="* * * * *", time_zone=BERLIN, overlap="allow", prompt="Look.")
    once = make_schedule(project, name="once", cron="30 2 * * *", time_zone=BERLIN, overlap="allow", prompt="Once.")
    site = Site(clock, name)
    monkeypatch.setattr(chaos, "point", site.point)
    try:
        for at, is_sweep in moments(site.dice, day, minutes):
            clock.at = max(at, clock.at)
            site.look(schedule, is_sweep=is_sweep)
        clock.at = day + timedelta(minutes=minutes, seconds=10)
        monkeypatch.setattr(chaos, "point", lambda name: None)
        site.look(schedule, is_sweep=True)
        start_due_schedules()
    finally:
        site.close()
    assert site.kills > minutes * KILLED / 2
    end = day + timedelta(minutes=minutes)
    for each in (schedule, once):
        due = list(_until(Cron(values_of(each)["cron"], BERLIN), day, end))
        starts = ScheduleStart.objects.filter(schedule=each)
        assert sorted(starts.values_list("due_at", flat=True)) == due
        assert set(starts.values_list("outcome", flat=True)) == {"started"}
        runs = AgentRun.objects.filter(schedule=each).values_list("pk", flat=True)
        assert sorted(runs) == sorted(starts.values_list("run_id", flat=True))
    assert ScheduleStart.objects.filter(schedule=once).count() == 1


def _until(cron: Cron, begin: datetime, end: datetime) -> Iterator[datetime]:
    for at in after(cron, begin):
        if at > end:
            return
        yield at
