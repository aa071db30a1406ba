"""Crash a run of twelve steps at a point of one step, once, or at every restart until it ends.

May import the product. In the end, messages, calls, tokens and result are as without the crash, and each effect
happened once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from tests.chaos.environment.player_environment import PlayerEnvironment, Program
from tests.chaos.environment.schedule_environment import ScheduleEnvironment
from tests.chaos.environment.workers import ChaosWorkers
from tests.chaos.schedules.at_crash_points import SHORT_SLICES
from tests.chaos.schedules.catalogue import AFTER_A_DEATH, IN_A_SLICE, STEPS
from tests.chaos.schedules.frame import playing
from tests.chaos.verdict import checks
from tests.chaos.verdict.result import Result
from tests.support.child_processes import BEFORE_THE_COMMIT, IN_A_STEP

#: The last step is the answer without a tool call.
TWELVE = Program(501, length=STEPS - 1, slow=0.3)
#: A third death in one step fails the run, as designed. After two, the next worker passes the point once.
PATIENCE = 2
MOST_RESTARTS = 40
#: Deaths in a row without a completed step. Claim and sweep run several times before a step completes.
MOST_IN_VAIN = 4
LIVELY_S = 90.0


@dataclass(frozen=True)
class Crash:
    engine: str
    point: str
    #: The step to crash; 0: every restart.
    step: int

    @property
    def name(self) -> str:
        return f"{self.point} {f'in step {self.step}' if self.step else 'at every restart'}"

    @property
    def again(self) -> str:
        return f"--engine {self.engine} --crash {self.point}:{self.step}"


@dataclass
class Playing:
    """A crash schedule while it is played."""

    crash: Crash
    schedule: ScheduleEnvironment
    route: list[str]
    #: The run's step at each death.
    fell_at: list[int] = field(default_factory=list)

    @property
    def workers(self) -> ChaosWorkers:
        return self.schedule.workers

    def until(self, spec: str) -> bool:
        """Run one worker until it dies at its point. Return False if the run ends first."""
        env = SHORT_SLICES if self.crash.point in IN_A_SLICE else {}
        worker = self.workers.start(spec, **env)
        until = time.monotonic() + LIVELY_S
        while not worker.fate and self.schedule.working() and time.monotonic() < until:
            self.workers.watch(restart=False)
            self.schedule.attend()
            time.sleep(0.02)
        if worker.met:
            run = self.schedule.lineages[0].newest
            self.fell_at.append(run.step_count if run is not None else 0)
        return worker.met

    def once(self) -> bool:
        """Crash the run once. Return False if the step does not meet the point."""
        point, step = self.crash.point, self.crash.step
        if point in AFTER_A_DEATH:
            before = AFTER_A_DEATH[point]
            return self.until(f"{before}:{hit_of(self.route, before, step)}") and self.until(f"{point}:1")
        if point in IN_A_SLICE:
            return self.until(f"{point}:{step}")
        hit = hit_of(self.route, point, step)
        return bool(hit) and self.until(f"{point}:{hit}")

    def at_every_restart(self) -> bool:
        point = self.crash.point
        before = AFTER_A_DEATH.get(point)
        for _ in range(MOST_RESTARTS):
            if self._in_vain() > MOST_IN_VAIN:
                break
            if before is not None and not self.until(f"{before}:{self._hit()}"):
                break
            if not self.until(f"{point}:{1 if before else self._hit()}"):
                break
        return bool(self.fell_at)

    def _in_vain(self) -> int:
        """Return the number of deaths since the last completed step."""
        return self.fell_at.count(self.fell_at[-1]) if self.fell_at else 0

    def _hit(self) -> int:
        return 1 if self._in_vain() < PATIENCE else 2


def hit_of(route: list[str], point: str, step: int) -> int:
    """Return the number of the first pass of a point in that step, or 0 if the step does not pass it."""
    made = hits = 0
    for passed in route:
        if passed == point:
            hits += 1
            if made == step - (point in BEFORE_THE_COMMIT):
                return hits
        made += passed == "turn.commit_sent"
    return 0


def play(environment: PlayerEnvironment, crash: Crash) -> Result:
    route = _route(environment)
    result = Result(crash.name, crash.engine, crash.again)
    with playing(environment, result, [TWELVE], redis=crash.point in IN_A_SLICE) as schedule:
        lineage = schedule.add(TWELVE)
        schedule.create(lineage)
        schedule.attend()
        struck = Playing(crash, schedule, route)
        met = struck.once() if crash.step else struck.at_every_restart()
        if schedule.working():
            schedule.workers.start()
        schedule.settle(within_s=LIVELY_S)
        asked, needed = checks.requests_of(schedule, lineage)
        deaths = len(schedule.workers.deaths)
        if asked > needed + deaths:
            result.wrong("requests", f"{asked} where {needed} are needed, after {deaths} deaths")
        if not met and crash.step and crash.point in IN_A_STEP and not hit_of(route, crash.point, crash.step):
            result.skipped = "the step does not meet the point"
        elif not met:
            result.wrong("not struck", f"nobody came to {crash.point}")
    return result


def _route(environment: PlayerEnvironment) -> list[str]:
    """Return the points that the undisturbed run passes, in order."""
    if not environment.route:
        result = Result("route", environment.engine, "")
        with playing(environment, result, [TWELVE]) as schedule:
            schedule.create(schedule.add(TWELVE))
            schedule.workers.start()
            schedule.settle(within_s=LIVELY_S)
            environment.route = [words[0] for _, _, kind, *words in schedule.workers.lines() if kind == "pass"]
        assert result.checks == {"no fault"}, result.problems
    return environment.route
