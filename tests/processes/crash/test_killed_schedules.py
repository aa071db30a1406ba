"""Test that each due time of a schedule starts one run, although workers are killed and beat sends no message."""

from __future__ import annotations

from datetime import timedelta

import pytest

from agentops.base import database_clock
from runs.models import AgentRun, Schedule, ScheduleStart
from tests.support.databases import reconnect
from tests.support.factories import make_project
from tests.support.project_rows import make_schedule
from tests.support.stage import Stage
from tests.support.timing import eventually


@pytest.mark.parametrize("point", ["schedule.in_transaction:2", "schedule.committed:2"])
def test_each_due_time_starts_one_run(stage: Stage, point: str) -> None:
    reconnect()
    schedule = make_schedule(make_project("crash"), overlap="allow")
    # Three due times have come, and none is late.
    since = database_clock.now().replace(second=0, microsecond=0) - timedelta(minutes=3, seconds=-1)
    Schedule.objects.filter(pk=schedule.pk).update(handled_until=since)

    stage.worker(chaos=point).killed()
    for _ in range(2):
        stage.worker()

    starts = ScheduleStart.objects.filter(schedule=schedule, due_at__lte=since + timedelta(minutes=3))
    eventually(lambda: starts.count() == 3, why="the next workers decide the rest")
    assert set(starts.values_list("outcome", flat=True)) == {"started"}
    started = AgentRun.objects.filter(schedule=schedule).order_by("pk").values_list("pk", flat=True)
    assert set(starts.values_list("run_id", flat=True)) <= set(started)
    assert len(started) == ScheduleStart.objects.filter(schedule=schedule).count()
