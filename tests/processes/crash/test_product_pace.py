"""Test with the default lease, renewal and sweep: another worker continues within 30 seconds of a kill."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from runs.models import AgentRun
from runs.statuses import RunStatus
from tests.support.run_checks import check, events
from tests.support.stage import Stage
from tests.support.timing import eventually

PACE = {"AGENTOPS_LEASE_S": "20", "AGENTOPS_RENEW_S": "5", "AGENTOPS_SWEEP_S": "5"}
POINTS = {
    "during the model call": "model.streaming:1",
    "between the answer and its tools": "turn.committed:1",
    "before the checkpoint": "checkpoint.before:1",
}


def recovered_after(stage: Stage, run: AgentRun, killed_at: datetime) -> float:
    [event] = eventually(
        lambda: [event for event in events(run) if event.type == "run.recovered"],
        within_s=40,
        why="the other worker goes on",
    )
    return (event.created_at - killed_at).total_seconds()


@pytest.mark.slow
def test_another_worker_continues_within_thirty_seconds(stage: Stage) -> None:
    """Four workers are killed in sequence while the survivor is suspended; then it finds four runs to recover."""
    survivor = stage.worker(**PACE)
    eventually(lambda: "[queues]" in survivor.said(), within_s=20, why="the survivor is up")
    stage.suspend(survivor)
    killed: dict[str, tuple[AgentRun, datetime]] = {}
    for when, point in POINTS.items():
        run = stage.run(chunks=8, pause_s=0.04)
        stage.worker(chaos=point, **PACE).killed()
        killed[when] = (run, datetime.now(UTC))
    run = stage.run([["ledger_idempotent"]], tool_sleep_s=2)
    holder = stage.worker(**PACE)
    eventually(lambda: [e for e in stage.effects() if e.run == str(run.pk)], within_s=20, why="the tool is running")
    holder.signal(stage.KILL)
    killed["during a tool"] = (run, datetime.now(UTC))
    survivor.signal(stage.CONT)

    for when, (each, killed_at) in killed.items():
        took = recovered_after(stage, each, killed_at)
        print(f"killed {when}: another worker went on after {took:.1f} s")
        assert took <= 30
    for each, _ in killed.values():
        stage.reaches(each, RunStatus.COMPLETED)
        check(each)
