"""Processes that work on several steps of a run at once, and steps whose last attempt has failed."""

from __future__ import annotations

from typing import Any

import pytest

from runs.actions import run_actions
from runs.lifecycle import transitions
from runs.models import AgentRun, AgentRunToolCall, Approval, RemoteStep
from tests.support.factories import drive, make_agent, make_project
from tests.support.remote import Program

pytestmark = pytest.mark.django_db(transaction=True)
ERROR = {"type": "OSError", "message": "no answer"}


@pytest.fixture
def program(db: None) -> Program:
    program = Program(make_project())
    program.start_run()
    assert program.claim() is not None
    return program


def successor(program: Program) -> Program:
    """Return another process that has taken the run over, because the first one died."""
    transitions.expire_leases(program.run.lease_owner or "")
    other = Program(program.project)
    assert other.claim() is not None
    return other


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "approval", "name": "charge", "input": {"cents": 500}},
        {"kind": "question", "name": "ask", "question": "Which?"},
        {"name": "charge", "needs_approval": True},
    ],
)
def test_a_start_that_would_release_the_run_is_not_carried_out(program: Program, fields: dict[str, Any]) -> None:
    program.start("1", "slow")
    answer = program.send(
        {"op": "start", "key": "2", "kind": "step", "may_release": False, **fields},
        {"op": "start", "key": "3", "kind": "step", "name": "next", "may_release": False},
    )

    assert [result["state"] for result in answer.json["results"]] == ["blocked", "run"]
    assert program.run.status == "running"
    assert list(RemoteStep.objects.filter(run=program.run).values_list("key", flat=True)) == ["1", "3"]
    assert not Approval.objects.exists()
    program.op("finish", "1", value="slow")
    program.op("finish", "3", value="next")
    assert program.start("2", **fields)["state"] == "released"


def test_a_stop_or_a_used_up_limit_blocks_a_start_too(program: Program) -> None:
    program.start("1", "slow")
    run_actions.stop("oscar", program.run)

    assert program.start("2", "next", may_release=False) == {"state": "blocked"}
    assert program.op("finish", "1", value="slow") == {"state": "done"}
    assert program.start("2", "next") == {"state": "released", "status": "stopped", "reason": "operator"}


def test_children_of_several_branches_run_at_the_same_time(program: Program) -> None:
    agent = make_agent(program.project)
    children = [
        {"key": key, "kind": "child", "name": "child", "agent": agent.slug, "prompt": "Do it"} for key in ("1", "2")
    ]
    for child in children:
        assert program.start(**child, may_release=False) == {"state": "waiting"}
        assert program.start(**child, may_release=False) == {"state": "waiting"}
    assert AgentRun.objects.filter(parent_run=program.run).count() == 2
    assert program.start(**children[0])["reason"] == "children"
    for run in AgentRun.objects.filter(parent_run=program.run):
        assert program.claim() is None
        drive(run)

    assert program.claim() is not None
    assert [program.start(**child)["value"]["status"] for child in children] == ["completed"] * 2


def test_a_short_sleep_keeps_the_run(program: Program) -> None:
    sleep = {"kind": "sleep", "name": "sleep", "seconds": 5}
    assert program.start(**sleep) == {"state": "run", "attempt": 0}
    other = successor(program)
    assert other.start(**sleep)["state"] == "run"
    assert other.op("finish", value=None) == {"state": "done"}


def test_a_step_that_has_failed_is_executed_again_after_a_resume(program: Program) -> None:
    """Also one with an effect: it is known that it failed, so no person has to say what happened."""
    program.start("1", "charge", effect="once")
    assert program.op("fail", error=ERROR, final=False) == {"state": "started"}
    call = AgentRunToolCall.objects.get(run=program.run)
    assert (call.status, call.output) == ("error", "OSError: no answer")
    program.release("failed", error=ERROR)
    run_actions.resume("oscar", program.run)

    program.claim()
    assert program.start("1", "charge", effect="once")["state"] == "run"


def test_a_process_that_dies_after_the_last_attempt_leaves_a_failed_step(program: Program) -> None:
    program.start("1", "charge", effect="once")
    program.op("fail", error=ERROR, final=False)

    assert successor(program).start("1", "charge", effect="once") == {"state": "failed", "error": ERROR}


def test_a_failure_that_is_handled_becomes_the_outcome(program: Program) -> None:
    program.start("1", "charge", effect="once")
    program.op("fail", error=ERROR, final=False, retry_in_s=0.5)
    assert AgentRunToolCall.objects.get(run=program.run).status == "running"
    program.op("fail", error=ERROR, final=False)

    assert program.op("fail", error=ERROR, final=True) == {"state": "failed", "error": ERROR}
    assert AgentRunToolCall.objects.get(run=program.run).status == "error"
