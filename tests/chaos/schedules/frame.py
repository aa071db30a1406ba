"""The frame of every schedule: set up databases, workers and a ledger before it, and run all checks after it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from agentops.accounts.models import Project
from tests.chaos.environment import sabotage
from tests.chaos.environment.player_environment import PlayerEnvironment, Program
from tests.chaos.environment.schedule_environment import ScheduleEnvironment
from tests.chaos.environment.workers import ChaosWorkers
from tests.chaos.verdict import checks
from tests.chaos.verdict.result import Result
from tests.support.stage import QUICK

GRACE_S = 3
PACE = {**QUICK, "AGENTOPS_GRACE_S": str(GRACE_S)}
#: Log lines to keep for each process.
LINES = 60


@contextmanager
def playing(
    environment: PlayerEnvironment,
    result: Result,
    programs: Sequence[Program],
    *,
    redis: bool = False,
    pace: Mapping[str, str] = PACE,
    broken: str = "",
) -> Iterator[ScheduleEnvironment]:
    """Play a schedule in the block, then check it and record failures in the result. `broken` names a sabotage."""
    began = time.monotonic()
    twins = environment.twins(list(programs))
    with environment.stage(redis=redis) as (stage, ledger):
        workers = ChaosWorkers(stage, result, dict(pace), sabotage=broken)
        schedule = ScheduleEnvironment(
            stage, ledger, workers, result, Project.objects.create(slug="chaos", name="Chaos")
        )
        sabotage.prepare_database(broken)
        yield schedule
        schedule.rest()
        checks.all_of(schedule, twins)
        if result.problems:
            result.logs = "\n".join(worker.process.said(LINES) for worker in workers.all)
        schedule.close()
        checks.check_leftovers(stage, result)
    if not result.faults and not result.skipped:
        result.wrong("no fault", "nothing happened in this schedule, so it proves nothing")
    result.seconds = round(time.monotonic() - began, 1)
