"""Paused child runs: the pause is a result of the waiting call, and the same model can resume the child."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from pydantic_ai.messages import ModelRequest, ToolCallPart, ToolReturnPart

from agentops.accounts.access import SYSTEM
from runs.actions import approvals, run_actions
from runs.actions.resume import resume
from runs.lifecycle import children, inbox, transitions
from runs.lifecycle.approval_decisions import Decision
from runs.models import AgentRun, AgentRunToolCall
from runs.providers.base import ModelCall
from runs.worker.in_process import advance_ready
from runs.worker.worker import Worker
from tests.support.engine import (
    DieAt,
    MakeHelper,
    MakeScripted,
    asks,
    children_of,
    in_order,
    of_type,
    saying,
    spawns,
    task,
    work,
)
from tests.support.factories import drive
from tests.support.scripted_model import Move, Play

pytestmark = pytest.mark.django_db(transaction=True)
WORK = ToolCallPart("ledger_read", {}, "call-work")
Lead = Callable[..., AgentRun]


def last_results(call: ModelCall) -> list[dict[str, Any]]:
    """Return the outcomes that the model received from its latest call of spawn_agents."""
    parts = [part for message in call.history if isinstance(message, ModelRequest) for part in message.parts]
    return list(json.loads(str([part for part in parts if isinstance(part, ToolReturnPart)][-1].content)))


def coordinator(*tasks: dict[str, Any], **more: Any) -> Play:
    """Return a model that resumes every paused run, using only the data in the result."""

    def play(call: ModelCall) -> Iterable[Move]:
        if call.number == 1:
            yield spawns(*tasks, **more)
            return
        paused = [each["run_id"] for each in last_results(call) if each["status"] == "paused"]
        if paused:
            again = [{"resume_run_id": run_id, "prompt": f"Go on, {call.number}."} for run_id in paused]
            yield spawns(*again, call_id=f"call-{call.number}", **more)
        else:
            yield "All done."

    return play


@pytest.fixture
def lead(scripted: MakeScripted) -> Lead:
    def make(play: Play, **options: Any) -> AgentRun:
        return scripted(play, tools=["spawn_agents", "handoff"], **options)

    return make


def calls_of(run: AgentRun) -> list[AgentRunToolCall]:
    return list(AgentRunToolCall.objects.filter(run=run).order_by("step_number"))


def outcomes_of(run: AgentRun, call: int = 0) -> list[dict[str, Any]]:
    return list(json.loads(calls_of(run)[call].output))


def state_of(run: AgentRun) -> tuple[str, str]:
    run.refresh_from_db()
    return run.status, run.status_reason


def test_a_coordinator_resumes_its_paused_child_without_a_person(
    lead: Lead, helper: MakeHelper, worker: Worker
) -> None:
    run = lead(coordinator(task("helper")))
    helper(run, "helper", [WORK], ["Found it."], max_steps=1)
    work(worker)

    assert state_of(run) == ("completed", "")
    child, successor = children_of(run)
    told, ended = outcomes_of(run)[0], outcomes_of(run, 1)[0]
    assert (told["agent"], told["run_id"], told["status"], told["reason"]) == (
        "helper",
        str(child.pk),
        "paused",
        "max_steps",
    )
    assert f'"resume_run_id": "{child.pk}"' in told["to_continue"]
    assert ended == {"agent": "helper", "run_id": str(successor.pk), "status": "completed", "result": "Found it."}
    assert [call.status for call in calls_of(run)] == ["completed", "completed"]
    assert successor.resumed_from == child
    said = [(row.role, row.content["parts"][0].get("content")) for row in successor.messages.order_by("position")]
    assert said[0] == ("user", "Go on, 2.")
    [phase] = of_type(run, "child_run.phase")
    assert (phase.ref_id, phase.payload["phase"], phase.payload["reason"]) == (child.pk, "paused", "max_steps")
    assert [event.ref_id for event in of_type(run, "child_run.completed")] == [successor.pk]
    for each in (run, child, successor):
        in_order(each)


def test_the_parent_receives_the_messages_in_order(lead: Lead, helper: MakeHelper, worker: Worker) -> None:
    run = lead(coordinator(task("helper")))
    helper(run, "helper", [WORK], ["Found it."], max_steps=1)
    work(worker)

    rows = run.messages.exclude(role="system").order_by("position")
    assert [row.role for row in rows] == ["user", "assistant", "tool_result", "assistant", "tool_result", "assistant"]
    assert [row.content["parts"][0]["tool_call_id"] for row in rows if row.role == "tool_result"] == [
        "call-spawn",
        "call-2",
    ]


def test_a_call_with_one_paused_child_waits_for_the_others(lead: Lead, helper: MakeHelper, worker: Worker) -> None:
    """All outcomes are one result, in the order of the tasks."""
    run = lead(saying([spawns(task("slow"), task("pauses"), task("fails"))], ["All done."]))
    helper(run, "slow", ["Slowly."])
    helper(run, "pauses", [WORK], max_steps=1)
    helper(run, "fails", ["Never."])
    drive(run, worker)
    slow, pauses, fails = children_of(run)
    drive(pauses, worker)
    assert state_of(pauses) == ("paused", "max_steps")
    assert state_of(run) == ("waiting", "children")
    run_actions.stop(SYSTEM, fails)
    drive(slow, worker)
    assert state_of(run) == ("queued", "children_ended")
    work(worker)

    assert [outcome["status"] for outcome in outcomes_of(run)] == ["completed", "paused", "stopped"]
    assert (state_of(run)[0], state_of(pauses)[0]) == ("completed", "paused")


@pytest.mark.parametrize(
    ("how", "reason"),
    [({"max_steps": 1}, "max_steps"), ({"settings": {"budgets": {"tokens": 1}}}, "budget"), ({}, "operator")],
)
def test_the_result_names_the_reason_of_the_pause(
    lead: Lead, helper: MakeHelper, worker: Worker, how: dict[str, Any], reason: str
) -> None:
    run = lead(saying([spawns(task("helper"))], ["All done."]))
    helper(run, "helper", [WORK], **how)
    drive(run, worker)
    [child] = children_of(run)
    if reason == "operator":
        inbox.pause(child.pk, by="user:1")
    work(worker)

    assert state_of(run) == ("completed", "")
    assert (outcomes_of(run)[0]["status"], outcomes_of(run)[0]["reason"]) == ("paused", reason)


def test_a_child_that_waits_for_a_person_does_not_count_as_paused(
    lead: Lead, helper: MakeHelper, worker: Worker
) -> None:
    """Only a person can answer it, not the parent."""
    run = lead(saying([spawns(task("asks"), task("approved"))], ["All done."]))
    helper(run, "asks", [asks()], ["It is that one."])
    helper(run, "approved", [WORK], ["Read."], policies={"approvals": [{"tools": "ledger_.*", "action": "ask"}]})
    work(worker)
    asking, approved = children_of(run)
    assert [state_of(each) for each in (asking, approved)] == [("waiting", "input"), ("waiting", "approval")]
    assert state_of(run) == ("waiting", "children")
    run_actions.send(SYSTEM, asking, "That one.")
    approvals.decide("user:oscar", approved, calls_of(approved)[0].pk, Decision(approves=True))
    work(worker)

    assert state_of(run) == ("completed", "")
    assert [outcome["status"] for outcome in outcomes_of(run)] == ["completed", "completed"]


def test_a_nested_child_returns_to_its_own_parent(lead: Lead, helper: MakeHelper, worker: Worker) -> None:
    run = lead(saying([spawns(task("middle"))], ["All done."]))
    helper(run, "middle", coordinator(task("leaf")))
    helper(run, "leaf", [WORK], ["Leaf."], max_steps=1)
    work(worker)

    assert state_of(run) == ("completed", "")
    [middle] = children_of(run)
    assert [outcomes_of(middle, call)[0]["status"] for call in (0, 1)] == ["paused", "completed"]
    assert outcomes_of(run)[0]["result"] == "All done."


@pytest.mark.parametrize(
    ("setting", "argument", "waits"),
    [("wait", None, True), ("wait", "return", False), (None, "wait", True), ("return", "wait", True)],
)
def test_the_argument_of_a_call_overrides_the_setting_of_the_agent(
    lead: Lead, helper: MakeHelper, worker: Worker, *, setting: str | None, argument: str | None, waits: bool
) -> None:
    more = {"on_child_pause": argument} if argument else {}
    run = lead(saying([spawns(task("helper"), **more)], ["All done."]))
    run.agent_config["settings"]["on_child_pause"] = setting
    run.save(update_fields=["agent_config"])
    helper(run, "helper", [WORK], max_steps=1)
    work(worker)

    assert state_of(run) == (("waiting", "children") if waits else ("completed", ""))


def test_a_handoff_waits_for_its_paused_child(lead: Lead, helper: MakeHelper, worker: Worker) -> None:
    run = lead(saying([ToolCallPart("handoff", {"agent": "clerk", "prompt": "Go on."}, "call-handoff")]))
    helper(run, "clerk", [WORK], ["On its way."], max_steps=1)
    work(worker)
    assert state_of(run) == ("waiting", "children")
    resume(children_of(run)[0].pk, by="user:1")
    work(worker)

    assert state_of(run) == ("completed", "")


@pytest.mark.parametrize("when", ["while the parent waits for another", "when the parent is over"])
def test_a_person_can_resume_a_child_that_was_returned_as_paused(
    lead: Lead, helper: MakeHelper, worker: Worker, when: str
) -> None:
    """The parent's record does not change; the child ends independently."""
    turns = [[spawns(task("pauses"))], [spawns(task("other"), call_id="call-other")], ["All done."]]
    run = lead(saying(*turns))
    helper(run, "pauses", [WORK], ["Found it."], max_steps=1)
    helper(run, "other", ["The other."])
    drive(run, worker)
    pauses = children_of(run)[0]
    drive(pauses, worker)
    drive(run, worker)
    other = children_of(run)[1]
    assert state_of(run) == ("waiting", "children")
    if when == "when the parent is over":
        work(worker)
        assert state_of(run) == ("completed", "")
    before = [event.type for event in of_type(run, "child_run.completed", "child_run.phase", "run.completed")]

    successor = resume(pauses.pk, by="user:1").run
    drive(other, worker)  # the first wait does not delay the second
    if when == "while the parent waits for another":
        assert state_of(run) == ("queued", "children_ended")
    drive(successor, worker)
    work(worker)

    assert state_of(run) == ("completed", "")
    assert state_of(successor) == ("completed", "")
    after = [event.type for event in of_type(run, "child_run.completed", "child_run.phase", "run.completed")]
    assert after[: len(before)] == before
    assert after.count("child_run.completed") == 1
    for each in (run, pauses, successor, other):
        in_order(each)


def test_a_person_resumes_a_child_before_the_parent_has_its_result(
    lead: Lead, helper: MakeHelper, worker: Worker
) -> None:
    run = lead(saying([spawns(task("helper"))], ["All done."]))
    helper(run, "helper", [WORK], ["Found it."], max_steps=1)
    drive(run, worker)
    [child] = children_of(run)
    drive(child, worker)
    assert state_of(run) == ("queued", "children_ended")
    successor = resume(child.pk, by="user:1").run
    work(worker)

    assert state_of(run) == ("completed", "")
    assert outcomes_of(run) == [
        {"agent": "helper", "run_id": str(successor.pk), "status": "completed", "result": "Found it."}
    ]


def test_a_deadline_does_not_stop_a_child_that_has_paused(lead: Lead, helper: MakeHelper, worker: Worker) -> None:
    run = lead(saying([spawns(task("pauses"), task("slow"), timeout_s=60)], ["All done."]))
    helper(run, "pauses", [WORK], max_steps=1)
    helper(run, "slow", [asks()])
    drive(run, worker)
    pauses, slow = children_of(run)
    drive(pauses, worker)
    drive(slow, worker)
    past = timezone.now() - timedelta(seconds=61)
    AgentRun.objects.filter(pk=run.pk).update(not_before=past)
    AgentRunToolCall.objects.filter(run=run).update(started_at=past)
    assert transitions.end_waits() == 1
    work(worker)

    assert [outcome["status"] for outcome in outcomes_of(run)] == ["paused", "timed_out"]
    assert (state_of(pauses)[0], state_of(slow)[0]) == ("paused", "stopped")


@pytest.mark.parametrize("point", ["end.in_transaction", "tool.returned", "result.in_transaction", "turn.committed"])
def test_a_worker_crash_reports_a_pause_once(
    lead: Lead, helper: MakeHelper, worker: Worker, die_at: DieAt, point: str
) -> None:
    run = lead(coordinator(task("helper")))
    helper(run, "helper", [WORK], ["Found it."], max_steps=1)
    die_at(run, point)
    work(worker)
    die_at(run, point)
    work(worker)

    assert state_of(run) == ("completed", "")
    assert [outcomes_of(run, call)[0]["status"] for call in (0, 1)] == ["paused", "completed"]
    assert len(of_type(run, "child_run.phase")) == 1
    in_order(run)


def test_the_sweep_continues_a_parent_whose_child_crashed_before_reporting_its_pause(
    lead: Lead, helper: MakeHelper, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = lead(saying([spawns(task("helper"))], ["All done."]))
    helper(run, "helper", [WORK], max_steps=1)
    drive(run, worker)
    with monkeypatch.context() as patch:
        patch.setattr("runs.lifecycle.children.continue_parent", lambda run_id: False)
        drive(children_of(run)[0], worker)
    assert state_of(run) == ("waiting", "children")

    assert children.continue_parents() == 1
    work(worker)
    assert state_of(run) == ("completed", "")


def test_a_call_that_an_older_version_opened_still_waits_for_its_child(
    lead: Lead, helper: MakeHelper, worker: Worker
) -> None:
    run = lead(coordinator(task("helper"), on_child_pause="wait"))
    helper(run, "helper", [WORK], ["Found it."], max_steps=1)
    work(worker)
    [child] = children_of(run)
    assert (state_of(run), state_of(child)) == (("waiting", "children"), ("paused", "max_steps"))
    AgentRun.objects.filter(pk=child.pk).update(on_pause="")

    for _ in range(5):
        advance_ready(worker)

    assert state_of(run) == ("waiting", "children")
    assert len(of_type(run, "run.waiting")) == 2, "it is not queued again and again"
    resume(child.pk, by="user:oscar")
    work(worker)
    assert state_of(run) == ("completed", "")
    assert outcomes_of(run)[0]["result"] == "Found it."
