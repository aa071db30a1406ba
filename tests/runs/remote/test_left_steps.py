"""A resumed run takes over the steps that the paused run left without an outcome."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from runs.actions import run_actions, unknown_calls
from runs.actions.unknown_calls import OutcomeChoice
from runs.lifecycle import approval_decisions, inbox
from runs.lifecycle.approval_decisions import Decision
from runs.models import AgentRun, AgentRunToolCall, Approval
from runs.upkeep import invariants
from tests.support.factories import drive, make_agent, make_project
from tests.support.remote import Program

pytestmark = pytest.mark.django_db(transaction=True)
APPROVAL = {"kind": "approval", "name": "charge", "input": {"cents": 500}}
REVIEWED = {"kind": "step", "name": "charge", "input": {"cents": 500}, "needs_approval": True}


@pytest.fixture
def program(db: None) -> Program:
    program = Program(make_project())
    program.start_run()
    assert program.claim() is not None
    return program


def pause_and_resume(program: Program) -> None:
    """Pause the run, which no process holds, resume it, and claim the run that continues it."""
    run_actions.pause("oscar", program.run)
    assert program.run.status == "paused"
    run_actions.resume("oscar", program.run)
    assert program.claim() is not None


def decide(program: Program, *, approves: bool, **fields: Any) -> None:
    call = Approval.objects.get(run=program.run).call
    approval_decisions.decide(program.run.pk, call.pk, Decision(approves=approves, **fields), by="oscar")


def deadline(run: AgentRun) -> Any:
    return AgentRunToolCall.objects.get(run=run).input["until"]


def test_a_sleep_keeps_its_end(program: Program) -> None:
    sleep = {"kind": "sleep", "name": "sleep", "seconds": 3600}
    program.start(**sleep)
    until = deadline(program.run)
    pause_and_resume(program)

    assert program.start(**sleep)["reason"] == "timer"
    assert deadline(program.run) == until


def test_a_sleep_that_ended_during_the_pause_is_over(program: Program) -> None:
    sleep = {"kind": "sleep", "name": "sleep", "seconds": 3600}
    program.start(**sleep)
    over = (timezone.now() - timedelta(seconds=1)).isoformat()
    AgentRunToolCall.objects.filter(run=program.run).update(input={"seconds": 3600, "until": over})
    pause_and_resume(program)

    assert program.start(**sleep) == {"state": "done", "value": None, "codec": ""}


def test_a_child_run_is_not_opened_twice(program: Program) -> None:
    """A pause takes the child along, and so does the resume."""
    agent = make_agent(program.project)
    wait = {"kind": "child", "name": "child", "agent": agent.slug, "prompt": "Do it", "timeout_s": 3600}
    program.start(**wait)
    child = AgentRun.objects.get(parent_run=program.run)
    pause_and_resume(program)
    child.refresh_from_db()
    assert child.status == "paused"

    assert program.start(**wait)["reason"] == "children"
    [resumed] = AgentRun.objects.filter(parent_run=program.run)
    assert resumed.resumed_from_id == child.pk
    drive(resumed)
    assert program.claim() is not None
    value = program.start(**wait)["value"]
    assert (value["run_id"], value["status"]) == (str(resumed.pk), "completed")
    program.release("completed")
    assert invariants.check() == []


def test_a_child_run_that_ended_during_the_pause_is_the_outcome(program: Program) -> None:
    """The run pauses because of an error in another branch, so its child runs on."""
    agent = make_agent(program.project)
    wait = {"kind": "child", "name": "child", "agent": agent.slug, "prompt": "Do it"}
    assert program.start(**wait, may_release=False) == {"state": "waiting"}
    child = AgentRun.objects.get(parent_run=program.run)
    program.release("failed", error={"type": "OSError", "message": "no answer"})
    drive(child)
    run_actions.resume("oscar", program.run)
    program.claim()

    value = program.start(**wait)["value"]
    assert (value["run_id"], value["status"]) == (str(child.pk), "completed")
    assert AgentRun.objects.filter(agent=agent).count() == 1
    program.release("completed")
    assert invariants.check() == []


@pytest.mark.parametrize(("step", "state"), [(APPROVAL, "done"), (REVIEWED, "run")])
def test_an_approval_counts_after_a_pause(program: Program, step: dict[str, Any], state: str) -> None:
    program.start(**step)
    decide(program, approves=True)
    pause_and_resume(program)

    assert program.start(**step)["state"] == state


@pytest.mark.parametrize("step", [APPROVAL, REVIEWED])
def test_an_approval_does_not_count_for_other_arguments(program: Program, step: dict[str, Any]) -> None:
    program.start(**step)
    decide(program, approves=True)
    pause_and_resume(program)

    assert program.start(**step | {"input": {"cents": 900}})["reason"] == "approval"


def test_the_arguments_of_an_approver_count_after_a_pause(program: Program) -> None:
    program.start(**REVIEWED)
    decide(program, approves=True, arguments={"cents": 300})
    pause_and_resume(program)

    assert program.start(**REVIEWED)["input"] == {"cents": 300}


def test_a_denial_counts_after_a_pause(program: Program) -> None:
    program.start(**REVIEWED)
    decide(program, approves=False, message="too much")
    pause_and_resume(program)

    denied = program.start(**REVIEWED)
    assert (denied["state"], "too much" in denied["error"]["message"]) == ("denied", True)


def test_an_approval_that_a_pause_cancelled_is_requested_again(program: Program) -> None:
    program.start(**REVIEWED)
    pause_and_resume(program)

    assert program.start(**REVIEWED)["reason"] == "approval"


@pytest.mark.parametrize(
    ("choice", "text", "outcome"),
    [
        (OutcomeChoice.DONE, "charged", {"state": "done", "value": "charged", "codec": ""}),
        (OutcomeChoice.FAILED, "no", {"state": "failed", "error": {"type": "failed", "message": "no"}}),
    ],
)
def test_a_resolved_outcome_counts_after_a_pause(
    program: Program, choice: OutcomeChoice, text: str, outcome: dict[str, Any]
) -> None:
    """Otherwise a step that took effect would be executed a second time."""
    program.start(name="charge")
    run_actions.pause("oscar", program.run)
    program.release("paused")
    run_actions.resume("oscar", program.run)
    program.claim()
    assert program.start(name="charge")["reason"] == "unknown_tool"
    call = AgentRunToolCall.objects.get(run=program.run)
    unknown_calls.resolve(program.run.pk, call.pk, choice, by="oscar", text=text)
    pause_and_resume(program)

    assert program.start(name="charge") == outcome


def test_a_signal_that_arrived_before_the_resume_is_kept(program: Program) -> None:
    """With its key, so that a repeated request still counts once."""
    inbox.signal(program.run.pk, "paid", 12, by="shop", key="invoice-17")
    run_actions.pause("oscar", program.run)
    program.release("paused")
    inbox.signal(program.run.pk, "sent", 13, by="shop")
    run_actions.resume("oscar", program.run)
    program.claim()

    assert not inbox.signal(program.run.pk, "paid", 12, by="shop", key="invoice-17").is_new
    assert program.start("1", "paid", kind="signal", signal="paid")["value"] == 12
    assert program.start("2", "sent", kind="signal", signal="sent")["value"] == 13
    assert program.start("3", "paid", kind="signal", signal="paid", timeout_s=60)["reason"] == "signal"
    assert invariants.check() == []


def test_messages_are_not_received_while_the_process_works_and_a_pause_is_pending(program: Program) -> None:
    program.start("1", "slow")
    run_actions.pause("oscar", program.run)

    assert program.op("receive", "2", may_release=False) == {"state": "blocked"}
    assert program.op("finish", "1", value=1) == {"state": "done"}
    assert program.op("receive", "2")["state"] == "released"
