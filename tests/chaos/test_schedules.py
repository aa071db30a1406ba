"""Schedules of which more is known than that they are green. Each is green, or says what it has found.

Seeds, and sabotages that the rig must see, are played by `python -m tests.chaos check`, which the gate runs too.
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
from tests.support.waiting import eventually
from timeline.models import Event

pytestmark = pytest.mark.chaos


def green(result: Result) -> Result:
    assert result.problems == [], f"{result.again}\n{result.logs}"
    assert result.faults
    assert result.compared + sum(result.incomparable.values()) > 0
    return result


def test_a_schedule_in_which_nothing_happens_is_a_failure(environment: PlayerEnvironment) -> None:
    """With the kill taken out, everything is in order but that there was no crash."""
    result = at_crash_points.play(
        environment, replace(at_crash_points.case(environment.engine, "turn.committed"), harmless=True)
    )

    assert result.checks == {"no fault"}, result.problems


def test_a_schedule_in_which_nobody_comes_to_the_point_is_a_failure(environment: PlayerEnvironment) -> None:
    """A worker dies, but where no turn is open there is nothing to recover: that death is not the one that counts."""
    case = replace(at_crash_points.case(environment.engine, "recovery.done"), before=("turn.committed:1",))

    result = at_crash_points.play(environment, case)

    assert result.struck == {"turn.committed": 1}
    assert result.checks == {"not struck"}, result.problems


@pytest.mark.parametrize("point", ["recovery.before", "recovery.done"])
def test_a_recovery_is_always_struck(environment: PlayerEnvironment, point: str) -> None:
    """The run that is tried first is the one whose worker died in the middle of a call of the model."""
    result = green(at_crash_points.play(environment, at_crash_points.case(environment.engine, point)))

    assert result.struck == {"model.before_call": 1, point: 1}


@pytest.mark.parametrize(("point", "step"), [("turn.in_transaction", 3), ("tool.returned", 5), ("lease.lapse_seen", 7)])
def test_a_long_run_is_crashed_in_a_step(environment: PlayerEnvironment, point: str, step: int) -> None:
    """The summary, the effects and the tokens of twelve steps, and one request more at most."""
    result = green(at_steps.play(environment, at_steps.Crash(environment.engine, point, step)))

    assert result.struck[point] == 1
    assert result.requests <= at_steps.STEPS + 2


@pytest.mark.slow
def test_a_long_run_is_crashed_at_every_restart(environment: PlayerEnvironment) -> None:
    """A worker dies in each step, and the run comes through."""
    result = green(at_steps.play(environment, at_steps.Crash(environment.engine, "turn.committed", 0)))

    assert result.struck["turn.committed"] >= at_steps.STEPS - 1


def test_the_recovery_is_crashed_twice_in_a_row(environment: PlayerEnvironment) -> None:
    """Whoever takes over dies as it does, and so does the next."""
    result = green(
        at_crash_points.play(
            environment, at_crash_points.twice(at_crash_points.case(environment.engine, "run.taken_over"))
        )
    )

    assert result.struck == {"turn.committed": 1, "run.taken_over": 2}


def test_workers_that_find_the_same_dead_run_do_not_both_have_it(environment: PlayerEnvironment) -> None:
    """Three look at once; each epoch has one owner, and each effect happens once."""
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
def test_what_was_said_before_a_crash_is_heard_once(environment: PlayerEnvironment, point: str) -> None:
    """A message that nobody had read when the worker died is told to the model, and only once."""
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


def test_a_crash_neither_resets_a_budget_nor_counts_twice(environment: PlayerEnvironment) -> None:
    """The runs of a lineage end at the same steps with the same tokens, with a crash and without."""
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
