"""Schedules with a specific expected result, beyond passing all checks.

`python -m tests.chaos check` plays seeds and sabotages; the gate runs it too.
"""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import replace

import pytest

from runs.models import Attempt
from tests.chaos.environment.player_environment import PlayerEnvironment, Program
from tests.chaos.schedules import at_crash_points, at_steps
from tests.chaos.schedules.frame import playing
from tests.chaos.verdict.result import Result
from tests.support.timing import eventually
from timeline.models import Event

pytestmark = pytest.mark.chaos


def green(result: Result) -> Result:
    assert result.problems == [], f"{result.again}\n{result.logs}"
    assert result.faults
    assert result.compared + sum(result.incomparable.values()) > 0
    return result


def test_a_schedule_without_a_fault_is_a_failure(environment: PlayerEnvironment) -> None:
    """Omit the kill: every check passes except "no fault"."""
    result = at_crash_points.play(
        environment, replace(at_crash_points.case(environment.engine, "turn.committed"), harmless=True)
    )

    assert result.checks == {"no fault"}, result.problems


def test_a_schedule_that_does_not_reach_its_point_is_a_failure(environment: PlayerEnvironment) -> None:
    """Kill a worker where no turn is open: nothing needs recovery, so the point is not reached."""
    case = replace(at_crash_points.case(environment.engine, "recovery.done"), before=("turn.committed:1",))

    result = at_crash_points.play(environment, case)

    assert result.struck == {"turn.committed": 1}
    assert result.checks == {"not struck"}, result.problems


@pytest.mark.parametrize("point", ["recovery.before", "recovery.done"])
def test_a_recovery_is_always_struck(environment: PlayerEnvironment, point: str) -> None:
    """Expect the run whose worker died during a model call to be tried first."""
    result = green(at_crash_points.play(environment, at_crash_points.case(environment.engine, point)))

    assert result.struck == {"model.before_call": 1, point: 1}


@pytest.mark.parametrize(("point", "step"), [("turn.in_transaction", 3), ("tool.returned", 5), ("lease.lapse_seen", 7)])
def test_a_long_run_survives_a_crash_in_a_step(environment: PlayerEnvironment, point: str, step: int) -> None:
    """Compare summary, effects and tokens of twelve steps; allow one additional request."""
    result = green(at_steps.play(environment, at_steps.Crash(environment.engine, point, step)))

    assert result.struck[point] == 1
    assert result.requests <= at_steps.STEPS + 2


@pytest.mark.slow
def test_a_long_run_survives_a_crash_at_every_restart(environment: PlayerEnvironment) -> None:
    """Kill a worker in each step."""
    result = green(at_steps.play(environment, at_steps.Crash(environment.engine, "turn.committed", 0)))

    assert result.struck["turn.committed"] >= at_steps.STEPS - 1


def test_the_recovery_survives_two_crashes_in_a_row(environment: PlayerEnvironment) -> None:
    """Kill the worker that takes over, and the next one too."""
    result = green(
        at_crash_points.play(
            environment, at_crash_points.twice(at_crash_points.case(environment.engine, "run.taken_over"))
        )
    )

    assert result.struck == {"turn.committed": 1, "run.taken_over": 2}


def test_only_one_worker_takes_over_a_dead_run(environment: PlayerEnvironment) -> None:
    """Wake three workers at once; each epoch has one owner, and each effect happens once."""
    result, program = Result("three at once", environment.engine, ""), Program(41, length=3)
    with playing(environment, result, [program]) as schedule:
        others = [schedule.workers.start() for _ in range(3)]
        eventually(lambda: all(each.up for each in others), within_s=60, why="all are up")
        for other in others:
            other.process.signal(signal.SIGSTOP)
        schedule.create(schedule.add(program))
        schedule.attend()
        first = schedule.workers.start("tool.running:1")
        eventually(lambda: first.process.exit_code, within_s=60, why="the first dies while a tool runs")
        for other in others:
            other.process.signal(signal.SIGCONT)
        schedule.settle(within_s=60, restart=False)
        owners = Counter(Attempt.objects.values_list("epoch", flat=True))
        taken_over = Event.objects.filter(type="run.recovered").count()
    green(result)
    assert set(owners.values()) == {1}
    assert taken_over >= 1


@pytest.mark.parametrize("point", ["claim.committed", "result.committed"])
def test_a_message_sent_before_a_crash_is_delivered_once(environment: PlayerEnvironment, point: str) -> None:
    """Send a message that the worker has not read when it dies; the model gets it exactly once."""
    result, program = Result("late delivery", environment.engine, ""), Program(43, length=3)
    with playing(environment, result, [program]) as schedule:
        lineage = schedule.add(program)
        schedule.create(lineage)
        schedule.attend()
        worker = schedule.workers.start(f"{point}:1", "STOP")
        eventually(worker.process.suspended, within_s=60, why=f"it stands at {point}")
        schedule.client.send(lineage.runs[0].pk, "note for later")
        schedule.workers.kill(worker)
        schedule.settle(within_s=60)
    assert result.operations["send ok"] == 1
    green(result)


def test_a_crash_neither_resets_a_budget_nor_counts_usage_twice(environment: PlayerEnvironment) -> None:
    """Expect the runs of a lineage to end at the same steps with the same tokens, with and without a crash."""
    program, shapes = Program(44, length=5, budget=2000), []
    for crash in ("", "turn.committed:2", "model.answered:1"):
        result = Result("budgets", environment.engine, "")
        with playing(environment, result, [program]) as schedule:
            lineage = schedule.add(program)
            schedule.create(lineage)
            schedule.attend()
            schedule.workers.start(crash)
            schedule.settle(within_s=60)
            shapes.append([(run.step_base, run.step_count, run.input_tokens) for run in lineage.runs])
        if crash:
            green(result)
        else:
            assert result.checks == {"no fault"}, result.problems
    assert shapes[0] == shapes[1] == shapes[2]
    assert len(shapes[0]) > 1, "the budget is met"
