"""A remote run waits without a process: for people, times, signals and child runs."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from runs.actions import approvals, run_actions
from runs.lifecycle import approval_decisions, transitions
from runs.lifecycle.approval_decisions import Decision
from runs.models import AgentRun, AgentRunToolCall, Approval
from tests.support.factories import drive, make_agent, make_project
from tests.support.remote import Program

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def program(db: None) -> Program:
    program = Program(make_project())
    program.start_run()
    assert program.claim() is not None
    return program


def released(reason: str) -> dict[str, str]:
    return {"state": "released", "status": "waiting", "reason": reason}


def decide(run: AgentRun, *, approves: bool, message: str = "") -> None:
    call = Approval.objects.get(run=run).call
    approval_decisions.decide(run.pk, call.pk, Decision(approves=approves, message=message), by="oscar")


def pass_deadline(run: AgentRun) -> None:
    """Let the time pass that the run and its call wait for."""
    over = timezone.now() - timedelta(seconds=1)
    call = AgentRunToolCall.objects.filter(run=run).latest("step_number")
    call.input["until"] = over.isoformat()
    call.save(update_fields=["input"])
    AgentRun.objects.filter(pk=run.pk).update(not_before=over)
    transitions.end_waits()


@pytest.mark.parametrize("approves", [True, False])
def test_approval(program: Program, approves: bool) -> None:
    assert program.start(kind="approval", name="charge", input={"cents": 500}) == released("approval")
    assert Approval.objects.get(run=program.run).arguments == {"cents": 500}
    assert program.claim() is None
    decide(program.run, approves=approves, message="" if approves else "too much")

    assert program.claim() is not None
    value = program.start(kind="approval", name="charge")["value"]
    assert value == {"approved": approves, "by": "oscar", "message": "" if approves else "too much"}


def test_an_expired_approval_is_a_denial(program: Program) -> None:
    program.start(kind="approval", name="charge", expires_s=60)
    AgentRun.objects.filter(pk=program.run.pk).update(not_before=timezone.now() - timedelta(seconds=1))
    assert approval_decisions.expire_due() == 1

    program.claim()
    assert program.start(kind="approval", name="charge")["value"]["approved"] is False


def test_a_step_that_needs_an_approval(program: Program) -> None:
    assert program.start(name="charge", needs_approval=True, input={"cents": 5}) == released("approval")
    decide(program.run, approves=True)

    program.claim()
    assert program.start(name="charge", needs_approval=True)["state"] == "run"
    assert program.op("finish", value="charged") == {"state": "done"}


def test_a_step_that_is_denied(program: Program) -> None:
    program.start(name="charge", needs_approval=True)
    decide(program.run, approves=False, message="no")

    program.claim()
    denied = program.start(name="charge", needs_approval=True)
    assert (denied["state"], denied["error"]["type"]) == ("denied", "denied")
    assert "no" in denied["error"]["message"]
    assert AgentRunToolCall.objects.get(run=program.run).starts == 0


def test_an_approver_changes_the_arguments(program: Program) -> None:
    program.start(name="charge", needs_approval=True, input={"cents": 500})
    call = Approval.objects.get(run=program.run).call
    decision = Decision(approves=True, arguments={"cents": 100})
    approvals.decide("oscar", program.run, call.pk, decision)

    program.claim()
    assert program.start(name="charge", needs_approval=True)["input"] == {"cents": 100}


def test_approval_rules_apply_to_steps(program: Program) -> None:
    config = program.run.agent_config | {
        "policies": {"approvals": [{"tools": "charge", "action": "deny", "reason": "not today"}]}
    }
    AgentRun.objects.filter(pk=program.run.pk).update(agent_config=config)
    assert program.start(name="charge")["error"]["message"] == "Denied by an approval rule: not today"
    assert program.start("2", "refund")["state"] == "run"


def test_question(program: Program) -> None:
    question = {"kind": "question", "name": "ask", "question": "Which?", "choices": ["a", "b"]}
    assert program.start(**question) == released("input")
    run_actions.reply("oscar", program.run, "b")

    program.claim()
    assert program.start(**question)["value"] == "b"


def test_an_early_reply_answers_the_question(program: Program) -> None:
    run_actions.reply("oscar", program.run, "b")
    question = {"kind": "question", "name": "ask", "question": "Which?"}
    assert program.start(**question)["state"] == "released"

    program.claim()
    assert program.start(**question)["value"] == "b"


def test_sleep(program: Program) -> None:
    assert program.start(kind="sleep", name="sleep", seconds=3600) == released("timer")
    assert transitions.end_waits() == 0
    pass_deadline(program.run)

    assert program.claim() is not None
    assert program.start(kind="sleep", name="sleep", seconds=3600) == {"state": "done", "value": None, "codec": ""}


def test_a_short_sleep_shows_the_same_after_a_crash(program: Program) -> None:
    """The process ends the first sleep. It dies in the second one, and the site sees that the time is over."""
    assert program.start("1", "sleep", "sleep", seconds=1)["state"] == "run"
    program.op("finish", "1", value=None)
    assert program.start("2", "sleep", "sleep", seconds=1)["state"] == "run"
    pass_deadline(program.run)
    transitions.expire_leases(program.run.lease_owner or "")
    assert program.claim() is not None
    assert program.start("2", "sleep", "sleep", seconds=1)["state"] == "done"

    outputs = AgentRunToolCall.objects.filter(run=program.run_id).values_list("output", flat=True)
    assert list(outputs) == ["The time is over."] * 2


def test_signal(program: Program) -> None:
    wait = {"kind": "signal", "name": "wait_for", "signal": "paid"}
    assert program.start(**wait) == released("signal")
    run_actions.signal("shop", program.run, "other", 1)
    program.claim()
    assert program.start(**wait) == released("signal")
    run_actions.signal("shop", program.run, "paid", {"cents": 500}, key="payment-1")
    run_actions.signal("shop", program.run, "paid", {"cents": 500}, key="payment-1")

    program.claim()
    assert program.start(**wait)["value"] == {"cents": 500}
    assert program.start("2", kind="signal", name="wait_for", signal="other")["value"] == 1
    assert program.start("3", kind="signal", name="wait_for", signal="paid") == released("signal")


def test_a_signal_that_does_not_come_in_time(program: Program) -> None:
    wait = {"kind": "signal", "name": "wait_for", "signal": "paid", "timeout_s": 60}
    program.start(**wait)
    pass_deadline(program.run)

    program.claim()
    assert program.start(**wait)["error"]["type"] == "timeout"


def test_child_run(program: Program) -> None:
    agent = make_agent(program.project)
    child = {"kind": "child", "name": "child", "agent": agent.slug, "prompt": "Do it"}
    assert program.start(**child) == released("children")
    child_run = AgentRun.objects.get(parent_run=program.run)
    drive(child_run)

    assert program.claim() is not None
    value = program.start(**child)["value"]
    assert (value["run_id"], value["status"]) == (str(child_run.pk), "completed")


def test_an_unknown_agent_cannot_be_a_child(program: Program) -> None:
    failed = program.start(kind="child", name="child", agent="nobody", prompt="Do it")
    assert (failed["state"], failed["error"]["type"]) == ("failed", "child_refused")


def test_messages_are_received_once(program: Program) -> None:
    run_actions.send("oscar", program.run, "Hurry")
    assert program.heartbeat()["commands"] == {program.run_id: ["message"]}
    assert program.op("receive")["value"] == ["Hurry"]
    assert program.op("receive")["value"] == ["Hurry"]
    assert program.op("receive", "2")["value"] == []
    assert program.release("completed", ignores_messages=False).json["status"] == "completed"


def test_a_run_with_pending_messages_is_not_completed(program: Program) -> None:
    run_actions.send("oscar", program.run, "Hurry")
    assert program.release("completed", ignores_messages=False).json["code"] == "messages_pending"
    assert program.run.status == "running"
