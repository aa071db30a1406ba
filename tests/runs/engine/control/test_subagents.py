"""Subagents: child runs, the wait without a worker, their results, and commands that apply to a whole tree."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from pydantic_ai.messages import ToolCallPart

from agentops.accounts.access import SYSTEM
from runs.actions import approvals, run_actions
from runs.actions.resume import resume
from runs.lifecycle import children, inbox, transitions
from runs.lifecycle.approval_decisions import Decision
from runs.models import AgentRun, AgentRunToolCall
from runs.worker.worker import Worker
from tests.support.databases import refusing
from tests.support.engine import (
    DieAt,
    MakeHelper,
    MakeScripted,
    children_of,
    in_order,
    of_type,
    saying,
    spawns,
    task,
    with_hooks,
    work,
)
from tests.support.factories import drive, make_agent, make_run
from tests.support.scripted_model import PLAYS

pytestmark = pytest.mark.django_db(transaction=True)
TOOLS = ["spawn_agents", "handoff"]


@pytest.fixture
def lead(scripted: MakeScripted) -> Callable[..., AgentRun]:
    """Create a queued run whose model makes these calls and answers after their results."""

    def make(*calls: ToolCallPart, **options: Any) -> AgentRun:
        return scripted(saying(*([call] for call in calls), ["All done."]), tools=TOOLS, **options)

    return make


def call_of(run: AgentRun) -> AgentRunToolCall:
    return AgentRunToolCall.objects.get(run=run)


def outcomes_of(run: AgentRun) -> list[dict[str, Any]]:
    return list(json.loads(call_of(run).output))


def state_of(run: AgentRun) -> tuple[str, str]:
    run.refresh_from_db()
    return run.status, run.status_reason


def test_results_follow_the_order_of_the_tasks_and_one_failure_is_one_error(
    lead: Callable[..., AgentRun], helper: MakeHelper, worker: Worker
) -> None:
    """A person stops the failing child; tests/processes/crash/test_trees.py covers the other failures."""
    run = lead(spawns(task("second"), task("broken"), task("first", "Begin."), on_child_pause="wait"))
    helper(run, "first", ["Found it."])
    helper(run, "second", ["Found nothing."])
    helper(run, "broken", [ToolCallPart("no_such_tool", {}, "c")], max_steps=1)

    drive(run, worker)
    assert state_of(run) == ("waiting", "children")
    assert AgentRun.objects.get(pk=run.pk).lease_owner is None
    second, broken, first = children_of(run)
    assert [child.prompt for child in (second, broken, first)] == ["Look.", "Look.", "Begin."]
    drive(first, worker)
    drive(second, worker)
    drive(broken, worker)
    assert state_of(broken) == ("paused", "max_steps")
    assert state_of(run) == ("waiting", "children")
    run_actions.stop(SYSTEM, broken)
    # The last child queued the parent directly, without a sweep.
    assert state_of(run) == ("queued", "children_ended")
    drive(run, worker)

    assert state_of(run) == ("completed", "")
    assert outcomes_of(run) == [
        {"agent": "second", "run_id": str(second.pk), "status": "completed", "result": "Found nothing."},
        {"agent": "broken", "run_id": str(broken.pk), "status": "stopped", "error": "operator"},
        {"agent": "first", "run_id": str(first.pk), "status": "completed", "result": "Found it."},
    ]
    assert call_of(run).status == "completed"
    started, ended = (of_type(run, f"child_run.{kind}") for kind in ("started", "completed"))
    assert [(event.ref_id, event.payload["index"]) for event in started] == [
        (child.pk, index) for index, child in enumerate((second, broken, first))
    ]
    assert [event.payload["status"] for event in ended] == ["completed", "stopped", "completed"]
    for each in (run, first, second, broken):
        in_order(each)


def test_a_start_time_in_the_future_gives_a_duration_of_zero(
    lead: Callable[..., AgentRun], helper: MakeHelper, worker: Worker
) -> None:
    run = lead(spawns(task("quick")))
    helper(run, "quick", ["Done."])
    drive(run, worker)
    [quick] = children_of(run)
    AgentRunToolCall.objects.filter(run=run).update(started_at=timezone.now() + timedelta(hours=1))
    drive(quick, worker)
    drive(run, worker)

    assert state_of(run) == ("completed", "")
    call = call_of(run)
    assert (call.status, call.duration_ms) == ("completed", 0)
    assert call.finished_at is not None
    assert call.started_at is not None
    assert call.finished_at >= call.started_at


def test_children_past_the_deadline_are_stopped(
    lead: Callable[..., AgentRun], helper: MakeHelper, worker: Worker
) -> None:
    run = lead(spawns(task("quick"), task("slow"), timeout_s=60))
    helper(run, "quick", ["Done."])
    helper(run, "slow", ["Never."])
    drive(run, worker)
    quick, slow = children_of(run)
    drive(quick, worker)
    assert AgentRun.objects.get(pk=run.pk).not_before > timezone.now()
    past = timezone.now() - timedelta(seconds=61)
    AgentRun.objects.filter(pk=run.pk).update(not_before=past)
    AgentRunToolCall.objects.filter(run=run).update(started_at=past)

    assert transitions.end_waits() == 1
    assert state_of(run) == ("queued", "children_timed_out")
    drive(run, worker)

    assert [outcome["status"] for outcome in outcomes_of(run)] == ["completed", "timed_out"]
    assert state_of(slow) == ("stopped", "operator")
    assert state_of(run) == ("completed", "")


def test_a_paused_child_keeps_its_parent_waiting_and_a_resume_continues_both(
    lead: Callable[..., AgentRun], helper: MakeHelper, worker: Worker
) -> None:
    run = lead(spawns(task("helper"), on_child_pause="wait"))
    helper(run, "helper", ["Found it."])
    drive(run, worker)
    [child] = children_of(run)
    inbox.pause(child.pk, by="user:1")
    work(worker)
    assert state_of(run) == ("waiting", "children")

    successor = resume(child.pk, by="user:1").run
    work(worker)

    assert state_of(run) == ("completed", "")
    assert outcomes_of(run)[0]["run_id"] == str(successor.pk)
    assert call_of(run).child_run == child


def test_stopping_or_pausing_a_parent_applies_to_its_children(
    lead: Callable[..., AgentRun], helper: MakeHelper, worker: Worker
) -> None:
    run = lead(spawns(task("middle")))
    helper(run, "middle", [spawns(task("leaf"))], ["Done."])
    helper(run, "leaf", ["Done."])
    drive(run, worker)
    [middle] = children_of(run)
    drive(middle, worker)
    [leaf] = children_of(middle)

    run_actions.pause(SYSTEM, run)
    assert [state_of(each) for each in (run, middle, leaf)] == [("paused", "operator")] * 3
    run_actions.stop(SYSTEM, run)
    assert [state_of(each) for each in (run, middle, leaf)] == [("stopped", "operator")] * 3
    assert call_of(run).status == "unknown"
    assert str(middle.pk) in call_of(run).output
    for each in (run, middle, leaf):
        in_order(each)


def test_a_handoff_ends_with_the_result_of_the_other_run(
    lead: Callable[..., AgentRun], helper: MakeHelper, worker: Worker
) -> None:
    run = lead(ToolCallPart("handoff", {"agent": "clerk", "prompt": "Go on."}, "call-handoff"))
    helper(run, "clerk", ["It is on its way."])
    work(worker)

    assert state_of(run) == ("completed", "")
    run.refresh_from_db()
    assert run.result == "It is on its way."
    [handoff] = of_type(run, "handoff")
    assert (handoff.payload["to_agent"], handoff.ref_id) == ("clerk", children_of(run)[0].pk)
    in_order(run)


def test_the_model_receives_the_error_of_a_failed_handoff(
    lead: Callable[..., AgentRun], helper: MakeHelper, worker: Worker
) -> None:
    run = lead(ToolCallPart("handoff", {"agent": "clerk", "prompt": "Go on."}, "call-handoff"))
    helper(run, "clerk", ["Never."])
    drive(run, worker)
    run_actions.stop(SYSTEM, children_of(run)[0])
    work(worker)

    run.refresh_from_db()
    assert (run.status, run.result) == ("completed", "All done.")
    assert (call_of(run).status, call_of(run).output) == ("error", "operator")


def test_a_paused_child_is_resumed_by_its_parent(
    lead: Callable[..., AgentRun], helper: MakeHelper, worker: Worker
) -> None:
    run = lead(spawns(task("helper")))
    helper(run, "helper", ["Found it."])
    drive(run, worker)
    [child] = children_of(run)
    run_actions.pause(SYSTEM, run)
    again = {"resume_run_id": str(child.pk), "prompt": "Go on."}
    config = AgentRun.objects.get(pk=run.pk).agent_config
    PLAYS[config["settings"]["play"]] = saying([ToolCallPart("spawn_agents", {"tasks": [again]}, "again")], ["Done."])
    successor = resume(run.pk, by="user:1").run
    work(worker)

    assert state_of(successor) == ("completed", "")
    [outcome] = outcomes_of(successor)
    assert (outcome["status"], outcome["result"]) == ("completed", "Found it.")
    assert AgentRun.objects.get(pk=outcome["run_id"]).resumed_from == child
    assert children_of(successor)[0].pk == AgentRun.objects.get(resumed_from=child).pk
    in_order(successor)


@pytest.mark.breaks_invariants("a child is given steps that it has not made")
def test_the_model_receives_the_error_of_a_child_that_cannot_resume(
    lead: Callable[..., AgentRun], helper: MakeHelper, worker: Worker
) -> None:
    run = lead(spawns(task("helper")))
    helper(run, "helper", ["Found it."])
    drive(run, worker)
    [child] = children_of(run)
    run_actions.pause(SYSTEM, run)
    AgentRun.objects.filter(pk=child.pk).update(step_count=500)
    tasks = [task("helper"), {"resume_run_id": str(child.pk), "prompt": "Go on."}]
    config = AgentRun.objects.get(pk=run.pk).agent_config
    PLAYS[config["settings"]["play"]] = saying([ToolCallPart("spawn_agents", {"tasks": tasks}, "again")], ["Done."])
    successor = resume(run.pk, by="user:1").run
    work(worker)

    assert (state_of(successor), state_of(child)) == (("completed", ""), ("paused", "operator"))
    assert call_of(successor).output == (
        "Nothing was started. A child cannot start: the lineage has used all of its 500 steps."
    )
    # The other task, which is valid, was not started either.
    assert children_of(successor) == []


@pytest.mark.parametrize(
    ("tasks", "why"),
    [
        ([task("nobody")], "no agent named 'nobody'"),
        ([task("lead")], "is this agent"),
        ([{"prompt": "Go.", "resume_run_id": "x"}], "not a valid run ID"),
        ([{"prompt": "Go.", "resume_run_id": "01a20bc4-22a4-72d3-88a6-530313847c2c"}], "not a child of this run"),
        ([{"prompt": "Go."}], "either agent or resume_run_id"),
        ([task("helper")] * 21, "at most 20 items"),
        ([], "at least 1 item"),
    ],
)
def test_an_invalid_call_starts_no_child(
    lead: Callable[..., AgentRun], helper: MakeHelper, worker: Worker, tasks: list[dict[str, Any]], why: str
) -> None:
    """An agent cannot start itself."""
    run = lead(spawns(task("helper"), *tasks) if len(tasks) == 1 else spawns(*tasks))
    run.agent_config["agent_id"] = "lead"
    run.save(update_fields=["agent_config"])
    helper(run, "helper", ["Done."])
    helper(run, "lead", ["Done."])
    work(worker)

    assert state_of(run) == ("completed", "")
    assert (call_of(run).status, children_of(run)) == ("error", [])
    assert why in call_of(run).output
    in_order(run)


@pytest.mark.slow
def test_nesting_and_the_number_of_children_are_limited(
    lead: Callable[..., AgentRun], helper: MakeHelper, worker: Worker
) -> None:
    run = lead(spawns(*[task("middle")] * 20), spawns(task("leaf")))
    helper(run, "middle", [spawns(task("leaf"))], ["Done."])
    helper(run, "leaf", [spawns(task("last"))], ["Done."])
    helper(run, "last", ["Never."])
    work(worker)

    calls = AgentRunToolCall.objects.filter(run=run).order_by("step_number")
    assert [call.status for call in calls] == ["completed", "error"]
    assert "at most 20 children" in calls[1].output
    leaf = children_of(children_of(run)[0])[0]
    assert "at most 2 levels deep" in call_of(leaf).output
    # Only the first of the twenty may start children.
    assert AgentRun.objects.count() == 1 + 20 + 1


@pytest.mark.parametrize("point", ["turn.committed", "end.in_transaction", "tool.returned", "result.in_transaction"])
def test_a_worker_crash_opens_no_child_twice(
    lead: Callable[..., AgentRun], helper: MakeHelper, worker: Worker, die_at: DieAt, point: str
) -> None:
    run = lead(spawns(task("helper")))
    helper(run, "helper", ["Found it."])
    die_at(run, point)
    work(worker)
    die_at(run, point)
    work(worker)

    assert state_of(run) == ("completed", "")
    assert len(children_of(run)) == 1
    in_order(run)


def test_the_sweep_continues_a_parent_whose_last_child_crashed_before_reporting(
    lead: Callable[..., AgentRun], helper: MakeHelper, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = lead(spawns(task("helper")))
    helper(run, "helper", ["Found it."])
    drive(run, worker)
    with monkeypatch.context() as patch:
        patch.setattr("runs.lifecycle.children.continue_parent", lambda run_id: False)
        drive(children_of(run)[0], worker)
    assert state_of(run) == ("waiting", "children")
    work(worker)

    assert state_of(run) == ("completed", "")


@pytest.mark.parametrize("ends", ["by its worker", "by a person"])
def test_a_child_ends_even_if_its_parent_row_cannot_be_updated(
    lead: Callable[..., AgentRun], helper: MakeHelper, worker: Worker, ends: str
) -> None:
    run = lead(spawns(task("helper")))
    helper(run, "helper", ["Found it."])
    drive(run, worker)
    (child,) = children_of(run)
    with refusing("UPDATE", "agent_runs", f"OLD.id = '{run.pk.hex}'"):
        if ends == "by its worker":
            drive(child, worker)
        else:
            run_actions.stop(SYSTEM, child)

    assert state_of(child)[0] == ("completed" if ends == "by its worker" else "stopped")
    assert state_of(run) == ("waiting", "children")
    work(worker)
    assert state_of(run) == ("completed", "")


@pytest.mark.parametrize("sweep", [children.continue_parents, transitions.end_waits])
def test_a_run_whose_wait_cannot_end_does_not_block_others(
    lead: Callable[..., AgentRun], helper: MakeHelper, worker: Worker, sweep: Callable[[], int]
) -> None:
    refused, other = runs = [lead(spawns(task("helper"))) for _ in range(2)]
    rows = ", ".join(f"'{run.pk.hex}'" for run in runs)
    for run in runs:
        helper(run, "helper", ["Found it."])
        drive(run, worker)
        with refusing("UPDATE", "agent_runs", f"OLD.id IN ({rows})"):
            drive(children_of(run)[0], worker)
    AgentRun.objects.filter(pk__in=[run.pk for run in runs]).update(not_before=timezone.now() - timedelta(seconds=1))
    with refusing("UPDATE", "agent_runs", f"OLD.id = '{refused.pk.hex}'"):
        assert sweep() == 1

    assert (state_of(refused), state_of(other)[0]) == (("waiting", "children"), "queued")
    work(worker)
    assert [state_of(run)[0] for run in runs] == ["completed", "completed"]


def test_a_waiting_run_occupies_no_worker_slot(
    lead: Callable[..., AgentRun], helper: MakeHelper, worker: Worker
) -> None:
    """One worker with one slot completes a tree of runs in which each waits for the next."""
    run = lead(spawns(task("middle")))
    helper(run, "middle", [spawns(task("leaf"))], ["Middle."])
    helper(run, "leaf", ["Leaf."])
    make_run(make_agent(run.project))
    work(worker)

    assert set(AgentRun.objects.values_list("status", flat=True)) == {"completed"}


@pytest.mark.parametrize("approves", [True, False])
def test_no_child_starts_before_a_rule_and_a_person_allow_it(
    lead: Callable[..., AgentRun], helper: MakeHelper, worker: Worker, *, approves: bool
) -> None:
    run = with_hooks(lead(spawns(task("one"))), approvals=[{"tools": "spawn_.*", "action": "ask"}])
    helper(run, "one", ["Found."])

    work(worker)
    assert state_of(run) == ("waiting", "approval")
    assert children_of(run) == []
    approvals.decide("user:oscar", run, call_of(run).pk, Decision(approves=approves))
    work(worker)

    assert state_of(run) == ("completed", "")
    assert len(children_of(run)) == approves
    assert call_of(run).status == ("completed" if approves else "denied")
