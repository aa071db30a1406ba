"""Kill a worker around an approval: the decision is kept, and the call has its effect once."""

from __future__ import annotations

import pytest

from agentops.accounts.models import Project
from runs import chaos
from runs.actions import approvals
from runs.lifecycle.approval_decisions import Decision
from runs.models import AgentRun, Approval
from runs.statuses import RunStatus
from tests.support.run_checks import check, events
from tests.support.stage import Stage

CALLS = [["ledger_once"], ["ledger_read"]]


def asking(stage: Stage) -> AgentRun:
    Project.objects.create(
        slug="crash", name="Crash", settings={"approvals": [{"tools": "ledger_once", "action": "ask"}]}
    )
    return stage.run(CALLS)


def approve(run: AgentRun) -> None:
    approvals.decide("user:oscar", run, Approval.objects.get(run=run).call_id, Decision(approves=True))


def assert_done_once(stage: Stage, run: AgentRun) -> None:
    stage.reaches(run, RunStatus.COMPLETED)
    assert len(stage.effects("call-1-0")) == 1
    assert Approval.objects.get(run=run).state == "approved"
    types = [event.type for event in events(run)]
    assert types.count("approval.requested") == types.count("approval.resolved") == 1
    check(run)


@pytest.mark.parametrize("point", chaos.APPROVAL_POINTS)
def test_a_run_survives_a_kill_while_an_approval_is_requested(stage: Stage, point: str) -> None:
    first = stage.worker(chaos=point)
    run = asking(stage)
    first.killed()
    stage.worker()
    stage.reaches(run, RunStatus.WAITING)
    assert stage.effects("call-1-0") == []
    approve(run)
    assert_done_once(stage, run)


@pytest.mark.parametrize("point", ["claim.committed", "hooks.before", "hooks.decided", "tool.before_start"])
def test_a_run_survives_a_kill_between_the_decision_and_the_call(stage: Stage, point: str) -> None:
    first = stage.worker()
    run = asking(stage)
    stage.reaches(run, RunStatus.WAITING)
    stage.suspend(first)
    second = stage.worker(chaos=point)
    approve(run)
    second.killed()
    assert stage.effects("call-1-0") == []
    first.signal(stage.CONT)
    assert_done_once(stage, run)
