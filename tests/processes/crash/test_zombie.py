"""Suspend a worker until another one has taken over its run, then wake it: it must not act on the run again."""

from __future__ import annotations

import time

import pytest

from runs.models import AgentRun, AgentRunToolCall, Attempt
from runs.statuses import RunStatus, ToolStatus
from tests.support.child_processes import ChildProcess
from tests.support.run_checks import check, events
from tests.support.stage import CALLS, Stage
from tests.support.timing import eventually

READ_FIRST = [["ledger_read", "ledger_idempotent"], ["ledger_once"]]
ONCE_FIRST = [["ledger_once", "ledger_read"], ["ledger_idempotent"]]
#: Points at which a suspended worker holds the output of a tool.
ANSWERED = {"tool.returned", "checkpoint.before"}


def suspended(stage: Stage, point: str, calls: list[list[str]]) -> tuple[AgentRun, ChildProcess]:
    run = stage.run(calls, on_unknown_tool="tell_model", chunks=8, pause_s=0.04)
    first = stage.worker(chaos=f"{point}:1:STOP")
    eventually(first.suspended, why=f"suspended at {point}")
    return run, first


def suspend_and_wake(stage: Stage, point: str, calls: list[list[str]]) -> tuple[AgentRun, ChildProcess]:
    """Return a run that a second worker has finished, and its first worker, which was woken afterwards."""
    run, first = suspended(stage, point, calls)
    for _ in range(3):
        if not stage.write_locked():
            break
        # Another of its threads was writing. SQLite has one writer, so no other worker could take over.
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
def test_a_fenced_worker_writes_nothing(stage: Stage, point: str, calls: list[list[str]], effects: int) -> None:
    """Except late tool output, which is marked as late."""
    run, zombie = suspend_and_wake(stage, point, calls)

    check(run)
    assert (run.status, run.lease_epoch) == (RunStatus.COMPLETED, 2)
    lines = events(run)
    [taken_over] = [event.seq for event in lines if event.type == "run.recovered"]
    assert [event for event in lines if event.epoch == 1 and event.seq > taken_over] == []
    told, late = [event for event in lines if not event.late], [event for event in lines if event.late]
    assert told[-1].type == "run.completed"
    # The tool's output is kept as a late event, but is not a result.
    assert [(e.type, e.payload["late"], e.epoch) for e in late] == [("tool.output", True, None)] * (point in ANSWERED)
    # Effects from before the suspension remain; afterwards the worker has none.
    mine = [effect for effect in stage.effects() if effect.run == str(run.pk)]
    assert [effect.epoch for effect in mine].count(1) == effects
    once = AgentRunToolCall.objects.get(run=run, tool_name="ledger_once")
    assert [effect.call_id for effect in mine].count(once.call_id) <= 1
    if calls is ONCE_FIRST:
        assert once.status == ToolStatus.UNKNOWN
    # It did not die, so nothing counts against the step, and it can execute other runs.
    assert list(Attempt.objects.filter(run=run, epoch=1).values_list("end_reason", flat=True)) == ["fenced"]
    other = stage.run()
    stage.reaches(other, RunStatus.COMPLETED)
    assert "outside of any rule" not in zombie.said(500)


@pytest.mark.postgres
@pytest.mark.parametrize("point", ["turn.in_transaction", "result.in_transaction", "end.in_transaction"])
def test_a_suspended_worker_does_not_block_a_run_by_a_transaction(stage: Stage, point: str) -> None:
    """The worker is suspended with row locks held: the server must end its transaction, or the run stays blocked.

    Not on SQLite, where a suspended writer locks the whole file until it wakes.
    """
    run, _ = suspend_and_wake(stage, point, CALLS)

    check(run)
    assert (run.status, run.lease_epoch) == (RunStatus.COMPLETED, 2)
