"""A worker is suspended until another one has taken its run over, and then woken up: it must do nothing more."""

from __future__ import annotations

import time

import pytest

from runs.models import AgentRun, AgentRunToolCall, Attempt
from runs.statuses import RunStatus, ToolStatus
from tests.support.processes.child_processes import ChildProcess
from tests.support.processes.stage import CALLS, Stage
from tests.support.run_checks import check, events
from tests.support.waiting import eventually

READ_FIRST = [["ledger_read", "ledger_idempotent"], ["ledger_once"]]
ONCE_FIRST = [["ledger_once", "ledger_read"], ["ledger_idempotent"]]
#: Suspended there, it has the answer of a tool in its hands.
ANSWERED = {"tool.returned", "checkpoint.before"}


def suspended(stage: Stage, point: str, calls: list[list[str]]) -> tuple[AgentRun, ChildProcess]:
    run = stage.run(calls, on_unknown_tool="tell_model", chunks=8, pause_s=0.04)
    first = stage.worker(chaos=f"{point}:1:STOP")
    eventually(first.suspended, why=f"suspended at {point}")
    return run, first


def suspend_and_wake(stage: Stage, point: str, calls: list[list[str]]) -> tuple[AgentRun, ChildProcess]:
    """A run that a second worker has finished, and its first worker, which has been awake again for a while."""
    run, first = suspended(stage, point, calls)
    for _ in range(3):
        if not stage.write_locked():
            break
        # Another thread of it was writing. SQLite has one writer: nobody can take its place, whatever we do.
        first.end()
        finisher = stage.worker()
        stage.reaches(run, RunStatus.COMPLETED)
        finisher.end()
        run, first = suspended(stage, point, calls)
    second = stage.worker()
    stage.reaches(run, RunStatus.COMPLETED)
    second.end()
    first.signal(stage.CONT)
    time.sleep(1.2)
    assert first.alive, first.said()
    return run, first


@pytest.mark.parametrize(
    ("point", "calls", "effects"),
    [
        ("claim.committed", CALLS, 0),
        ("model.streaming", CALLS, 0),
        ("model.answered", CALLS, 0),
        ("turn.committed", CALLS, 0),
        ("tool.marked_running", READ_FIRST, 0),
        ("tool.marked_running", ONCE_FIRST, 0),
        ("tool.returned", CALLS, 1),
        ("tool.returned", ONCE_FIRST, 1),
        ("checkpoint.before", CALLS, 2),
        ("end.before", CALLS, 3),
    ],
)
def test_it_writes_nothing_after_it_was_taken_over(
    stage: Stage, point: str, calls: list[list[str]], effects: int
) -> None:
    """S-115: nothing but what a tool of it had answered meanwhile, which says that it came late."""
    run, zombie = suspend_and_wake(stage, point, calls)

    check(run)
    assert (run.status, run.lease_epoch) == (RunStatus.COMPLETED, 2)
    lines = events(run)
    [taken_over] = [event.seq for event in lines if event.type == "run.recovered"]
    assert [event for event in lines if event.epoch == 1 and event.seq > taken_over] == []
    told, late = [event for event in lines if not event.late], [event for event in lines if event.late]
    assert told[-1].type == "run.completed"
    # What its tool had answered is kept, and is no result.
    assert [(e.type, e.payload["late"], e.epoch) for e in late] == [("tool.output", True, None)] * (point in ANSWERED)
    # What it had done before it was suspended stays done; after that it has touched nothing.
    mine = [effect for effect in stage.effects() if effect.run == str(run.pk)]
    assert [effect.epoch for effect in mine].count(1) == effects
    once = AgentRunToolCall.objects.get(run=run, tool_name="ledger_once")
    assert [effect.call_id for effect in mine].count(once.call_id) <= 1
    if calls is ONCE_FIRST:
        assert once.status == ToolStatus.UNKNOWN
    # It did not die, so nothing counts against the step; and it goes on to work.
    assert list(Attempt.objects.filter(run=run, epoch=1).values_list("end_reason", flat=True)) == ["fenced"]
    other = stage.run()
    stage.reaches(other, RunStatus.COMPLETED)
    assert "outside of any rule" not in zombie.said(500)


@pytest.mark.postgres
@pytest.mark.parametrize("point", ["turn.in_transaction", "result.in_transaction", "end.in_transaction"])
def test_it_does_not_hold_a_run_by_a_transaction(stage: Stage, point: str) -> None:
    """Suspended with row locks in hand: the server must end such a transaction, or nobody ever has the run again.

    Not on SQLite: there one writer holds the whole file, and a suspended one holds it for as long as it is.
    """
    run, _ = suspend_and_wake(stage, point, CALLS)

    check(run)
    assert (run.status, run.lease_epoch) == (RunStatus.COMPLETED, 2)
