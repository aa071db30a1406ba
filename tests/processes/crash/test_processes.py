"""Test failures of processes: killed children, killed parents, repeated signals and wrong clocks."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from runs.models import AgentRun, AgentRunToolCall, Attempt
from runs.statuses import RunStatus
from tests.support.child_processes import ChildProcess
from tests.support.run_checks import check, events
from tests.support.stage import Stage
from tests.support.timing import eventually, is_alive

pytestmark = pytest.mark.slow
SLOW = [["ledger_idempotent"], ["ledger_read"]]


def forking(stage: Stage) -> ChildProcess:
    argv = ["-A", "agentops", "worker", "--pool", "prefork", "-c", "2", "--beat"]
    return stage.spawn([*argv, "-n", f"w{len(stage.workers)}@%h"])


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]


def holder(run: AgentRun) -> int:
    """Return the ID of the process that holds the run's lease, or 0."""
    run.refresh_from_db()
    return int(run.lease_owner.split(":")[1]) if run.lease_owner else 0


@pytest.mark.redis
@pytest.mark.usefixtures("own_redis")
def test_a_killed_child_is_replaced(stage: Stage) -> None:
    """As when memory runs out. The run continues in another child, and the other children are unaffected."""
    run = stage.run(SLOW, tool_sleep_s=1)
    parent = forking(stage)
    eventually(stage.effects, why="a child is at work")
    child = holder(run)
    born = children(parent.pid)
    assert child in born

    os.kill(child, signal.SIGKILL)

    stage.reaches(run, RunStatus.COMPLETED)
    check(run)
    assert "run.recovered" in [event.type for event in events(run)]
    assert len({effect.key for effect in stage.effects("call-1-0")}) == 1
    assert parent.alive, parent.said()
    eventually(lambda: len(set(children(parent.pid)) - {child}) == len(born), why="the dead child has been replaced")


@pytest.mark.redis
@pytest.mark.usefixtures("own_redis")
def test_children_end_with_their_parent(stage: Stage) -> None:
    """Orphaned children claim no runs; their runs continue elsewhere, and they end."""
    run = stage.run(SLOW, tool_sleep_s=1)
    parent = forking(stage)
    eventually(stage.effects, why="a child is at work")
    orphans = children(parent.pid)

    parent.signal(stage.KILL)
    parent.killed()
    eventually(lambda: not any(map(is_alive, orphans)), why="the children end too")

    stage.worker()
    stage.reaches(run, RunStatus.COMPLETED)
    check(run)


@pytest.mark.redis
@pytest.mark.usefixtures("own_redis")
def test_children_of_a_parent_killed_during_the_fork_do_nothing(stage: Stage) -> None:
    """The parent dies right after the fork, before the children have asked the kernel to end with it."""
    run = stage.run(SLOW)
    parent = forking(stage)
    eventually(lambda: "[queues]" in parent.said(500), why="the parent is about to fork")
    born = eventually(lambda: children(parent.pid), why="the first child is born")
    for child in born:
        os.kill(child, stage.STOP)
    parent.signal(stage.KILL)
    parent.killed()
    for child in born:
        os.kill(child, stage.CONT)

    eventually(lambda: not any(map(is_alive, born)), why="the children end too")
    run.refresh_from_db()
    assert (run.status, run.lease_epoch) == (RunStatus.QUEUED, 0)


def test_repeated_sigterms_are_harmless(stage: Stage) -> None:
    """Each signal interrupts the handling of the previous one."""
    run = stage.run(SLOW, tool_sleep_s=1.5)
    first = stage.worker()
    eventually(stage.effects, why="a tool is at work")
    for _ in range(500):
        os.kill(first.pid, stage.TERM)
    first.wait(within_s=15, why="ended by SIGTERM")
    stage.worker()

    stage.reaches(run, RunStatus.COMPLETED)
    check(run)
    assert len({effect.key for effect in stage.effects("call-1-0")}) == 1


@pytest.mark.parametrize("hours", [1, -1])
def test_a_worker_with_a_wrong_clock_takes_no_run_too_early(stage: Stage, hours: int) -> None:
    """Leases and waits use the database's clock. By the worker's clock, all leases expired an hour ago, or never
    expire.
    """
    skew = {"TEST_SKEW_S": str(hours * 3600)}
    held = stage.run([["ledger_idempotent"]], tool_sleep_s=4)
    honest = stage.worker()
    eventually(stage.effects, why="the honest worker is at work")
    wrong = stage.worker(**skew)
    own = stage.run(SLOW)

    for run in (held, own):
        stage.reaches(run, RunStatus.COMPLETED)
        check(run)
        assert Attempt.objects.filter(run=run).count() == 1
    honest.end()
    last = stage.run([["ledger_once"]], tool_sleep_s=4, on_unknown_tool="tell_model")
    eventually(lambda: holder(last) == wrong.pid, why="the worker with the wrong clock has a run")
    eventually(lambda: stage.effects("call-1-0")[-1].run == str(last.pk), why="its tool is at work")
    wrong.end()
    stage.worker()
    # Two clocks affect one call: it must not end before it began.
    stage.reaches(last, RunStatus.COMPLETED)
    check(last)
    call = AgentRunToolCall.objects.get(run=last)
    assert call.started_at is not None
    assert call.finished_at is not None
    assert call.started_at <= call.finished_at
