"""Subagents of a session: child runs, whose calls are checked by the hooks and rules of the run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import Client

from agentops.accounts.models import Role
from runs.actions import approvals
from runs.actions.resume import resume
from runs.hooks.base import HookContext, HookEvent, Verdict
from runs.lifecycle import inbox
from runs.lifecycle.approval_decisions import Decision
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, Approval
from runs.queries.needs import count_of
from tests.support.engine import use
from tests.support.factories import drive, make_person
from tests.support.programs.stub_cli import StubProgram
from tests.support.run_checks import check, events, refuses
from tests.support.timing import eventually
from timeline.models import Event

pytestmark = pytest.mark.django_db(transaction=True)
MakeRun = Callable[..., AgentRun]
Told = Callable[..., None]
BASH = {"tool": "Bash", "input": {"command": "ls"}, "output": "ran {command}"}
READ, WRITE = ({"tool": tool, "input": {"path": "a.txt"}, "output": f"{tool} {{path}}"} for tool in ("Read", "Write"))
TASK = {"description": "Look around", "prompt": "Find the tests.", "subagent_type": "Explore"}


def agent(*acts: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a call that starts a subagent."""
    return {"tool": "Agent", "input": TASK, "output": "It found two.", "subagent": list(acts), **more}


def meanwhile(act: Callable[[], None]) -> None:
    """Run a function in a thread while this thread drives a run."""

    def in_thread() -> None:
        try:
            act()
        finally:
            connection.close()

    threading.Thread(target=in_thread, daemon=True).start()


def asked(run: AgentRun, number: int = 1) -> Approval:
    """Wait for the `number`th approval of a subagent's call, and return it."""
    rows = Approval.objects.filter(run__parent_run=run).select_related("run", "call").order_by("pk")
    eventually(lambda: rows.count() == number, why="a person is asked")
    return rows[number - 1]


def child_of(run: AgentRun) -> AgentRun:
    return AgentRun.objects.get(parent_run=run)


def test_a_subagent_becomes_a_child_run(session_run: MakeRun) -> None:
    run = drive(session_run(agent({"text": "I look."}, BASH, {"text": "Two."}), {"text": "Done."}))

    child = child_of(run)
    assert (child.status, child.title, child.agent_config["agent_id"]) == ("completed", "Look around", "Explore")
    rows = AgentRunMessage.objects.filter(run=child).order_by("position")
    assert [row.role for row in rows] == ["user", "assistant", "assistant", "tool_result", "assistant"]
    assert rows[0].content["parts"][0]["content"] == "Find the tests."
    [call] = AgentRunToolCall.objects.filter(run=child)
    assert (call.tool_name, call.status, call.output) == ("Bash", "completed", "ran ls")
    # The result that the main agent receives, and the usage counted for each run.
    [spawning] = AgentRunToolCall.objects.filter(run=run)
    assert (spawning.child_run, spawning.output) == (child, "It found two.")
    assert (run.output_tokens, child.output_tokens) == (10, 15)
    types = list(Event.objects.filter(log=run.pk).order_by("seq").values_list("type", flat=True))
    assert types.index("tool.start") < types.index("child_run.started") < types.index("child_run.completed")
    assert types.index("child_run.completed") < types.index("tool.end")
    lines = Event.objects.filter(log=run.pk, type__startswith="child_run.").order_by("seq")
    assert [(line.type, line.ref_id, line.payload["agent"]) for line in lines] == [
        ("child_run.started", child.pk, "Explore"),
        ("child_run.completed", child.pk, "Explore"),
    ]
    check(run)
    check(child)


def test_rules_and_guards_apply_to_the_calls_of_a_subagent(
    session_run: MakeRun, program: StubProgram, told: Told
) -> None:
    """They also apply to tools that the settings allow."""
    told(denies=lambda context: Verdict.deny("Not this.") if context.tool_name == "Read" else None)
    policies = {
        "approvals": [{"tools": "Bash", "action": "deny", "reason": "No shell."}],
        "hooks": [use("denies", HookEvent.PRE_TOOL_USE)],
    }
    run = drive(session_run(agent(BASH, READ), {"text": "Done."}, policies=policies))

    assert (run.status, program.ledger) == ("completed", ["Agent"])
    calls = AgentRunToolCall.objects.filter(run=child_of(run)).order_by("id")
    assert [(call.status, str(call.output)) for call in calls] == [
        ("error", "Denied by an approval rule: No shell."),
        ("error", "Denied by told_guard: Not this."),
    ]
    assert Event.objects.filter(log=run.pk, type="safety.block").count() == 2
    check(run)


def test_a_call_of_a_subagent_that_no_rule_pattern_matches_does_not_run(
    session_run: MakeRun, program: StubProgram
) -> None:
    listed = {"allowed_tools": ["Write(src/**)"]}
    run = drive(session_run(agent(WRITE), {"text": "Done."}, settings=listed))

    assert (run.status, program.ledger) == ("completed", ["Agent"])
    assert "not allowed" in str(AgentRunToolCall.objects.get(run=child_of(run)).output)


def test_a_hook_receives_the_tool_and_arguments_of_a_subagent_s_call(session_run: MakeRun, told: Told) -> None:
    seen: list[HookContext] = []
    told(watches=seen.append)
    hooks = {"hooks": [use("watches", HookEvent.PRE_TOOL_USE, guard=False)]}
    run = drive(session_run(agent(BASH), {"text": "Done."}, policies=hooks))

    call = AgentRunToolCall.objects.get(run=child_of(run))
    assert [(context.tool_name, context.arguments) for context in seen] == [
        ("Agent", TASK),
        ("Bash", {"command": "ls"}),
    ]
    assert seen[1].call_id == call.call_id


@pytest.mark.slow
def test_a_subagent_ends_with_the_run_that_is_taken_from_its_worker(session_run: MakeRun, program: StubProgram) -> None:
    """In one transaction, because no worker may ever claim the child run."""
    at_work = agent({"text": "I look."}, {**BASH, "meanwhile": {"sleep": 60}})
    run = session_run(at_work, {"text": "Done."})
    ended: list[str] = []

    def take_away() -> None:
        eventually(lambda: "Bash" in program.ledger, why="the sub-agent's tool runs")
        with transaction.atomic():
            resume(run.pk, by="ann", message="Again.", kill=True)
            child = child_of(run)
            ended.extend([child.status, events(child)[-1].type])

    meanwhile(take_away)
    run = drive(run)

    assert ended == ["stopped", "run.stopped"]
    types = [event.type for event in events(run)]
    assert types.index("child_run.completed") < types.index("tool.end") < types.index("run.paused")
    assert run.status == "resumed"
    check(run)
    check(child_of(run))


@pytest.mark.slow
def test_a_subagent_s_call_waits_for_a_person_and_does_not_block_the_other_calls(
    session_run: MakeRun, program: StubProgram
) -> None:
    """The program keeps running: it gets the answers over the control protocol in the order of the decisions."""
    other = {**WRITE, "input": {"path": "b.txt"}}
    run = session_run(agent({"tools": [WRITE, other, READ], "at_once": True}, {"text": "Three."}), {"text": "Done."})
    seen: list[Any] = []

    def decide() -> None:
        first = asked(run)
        eventually(lambda: "Read" in program.ledger, why="the other call runs")
        eventually(lambda: first.run.tool_calls.filter(status="completed").exists(), why="its result is stored")
        run.refresh_from_db()
        child = child_of(run)
        seen.extend([run.status, child.status, child.status_reason, count_of(run.project_id).total])
        person = Client()
        person.force_login(make_person(run.project, Role.OPERATOR))
        page = person.get(f"/runs/{child.pk}").content.decode()
        seen.append([text in page for text in (f"/calls/{first.call_id}/decide", "where the agent runs, not here")])
        edited = Decision(approves=True, arguments={"path": "copy.txt"})
        approvals.decide("user:oscar", child, first.call_id, edited)
        approvals.decide("user:oscar", child, asked(run, 2).call_id, Decision(approves=False, message="Not b."))

    meanwhile(decide)
    run = drive(run)

    assert seen == ["running", "waiting", "approval", 1, [True, False]]
    assert (run.status, program.ledger, len(program.starts)) == ("completed", ["Agent", "Read", "Write"], 1)
    child = child_of(run)
    calls = AgentRunToolCall.objects.filter(run=child).order_by("id")
    assert [(call.status, call.output) for call in calls] == [
        ("completed", "Write copy.txt"),
        ("error", "A person denied this call, so it was not run. Not b."),
        ("completed", "Read a.txt"),
    ]
    told_of = [event.type for event in events(child) if event.type in ("approval.requested", "approval.resolved")]
    assert told_of == ["approval.requested", "approval.resolved"] * 2
    assert child.status == "completed"
    check(run)


@pytest.mark.slow
def test_an_approval_of_a_subagent_s_call_expires(session_run: MakeRun, program: StubProgram) -> None:
    """The worker that holds the program expires it. An approval for all calls of the tool is valid for the whole
    session.
    """
    run = session_run(
        agent(WRITE, WRITE, WRITE, {"text": "Two."}), WRITE, agent(WRITE, {"text": "Four."}), {"text": "Done."}
    )

    def expire_and_approve() -> None:
        first = asked(run)
        Approval.objects.filter(pk=first.pk).update(expires_at=first.created_at)
        second = asked(run, 2)
        approvals.decide("user:oscar", second.run, second.call_id, Decision(approves=True, always=True))

    meanwhile(expire_and_approve)
    run = drive(run)

    assert (run.status, program.ledger) == ("completed", ["Agent", "Write", "Write", "Write", "Agent", "Write"])
    rows = Approval.objects.filter(project=run.project).order_by("pk")
    assert [row.state for row in rows] == ["expired", "approved"]
    first_child, _ = children = list(run.children.order_by("pk"))
    first = AgentRunToolCall.objects.filter(run=first_child).earliest("id")
    assert first.output == "Nobody approved this call in time, so it was not run."
    for child in children:
        check(child)


@pytest.mark.slow
def test_an_approval_ends_with_the_session_of_its_subagent(session_run: MakeRun, program: StubProgram) -> None:
    run = session_run(agent(WRITE), {"text": "Done."})

    def stop() -> None:
        asked(run)
        inbox.stop(run.pk, by="ann")

    meanwhile(stop)
    run = drive(run)

    approval, child = asked(run), child_of(run)
    assert (run.status, child.status, approval.state, program.ledger) == ("stopped", "stopped", "cancelled", ["Agent"])
    with refuses("approval_decided", match="the run is stopped"):
        approvals.decide("user:oscar", child, approval.call_id, Decision(approves=True))
    check(child)
