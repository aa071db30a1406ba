"""Sub-agents of a session: child runs, whose calls pass the hooks and the rules of the run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from runs.actions.resume import resume
from runs.hooks.base import HookContext, HookEvent, Verdict
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall
from tests.support.claude.stub_program import StubProgram
from tests.support.engine.hook_samples import use
from tests.support.factories import drive
from tests.support.run_checks import check, events
from tests.support.waiting import eventually
from timeline.models import Event

pytestmark = pytest.mark.django_db(transaction=True)
MakeRun = Callable[..., AgentRun]
Told = Callable[..., None]
BASH = {"tool": "Bash", "input": {"command": "ls"}, "output": "ran {command}"}
TASK = {"description": "Look around", "prompt": "Find the tests.", "subagent_type": "Explore"}


def agent(*acts: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A call that a sub-agent works for."""
    return {"tool": "Agent", "input": TASK, "output": "It found two.", "subagent": list(acts), **more}


def child_of(run: AgentRun) -> AgentRun:
    return AgentRun.objects.get(parent_run=run)


def test_a_sub_agent_becomes_a_child_run(session_run: MakeRun) -> None:
    run = drive(session_run(agent({"text": "I look."}, BASH, {"text": "Two."}), {"text": "Done."}))

    child = child_of(run)
    assert (child.status, child.title, child.agent_config["agent_id"]) == ("completed", "Look around", "Explore")
    rows = AgentRunMessage.objects.filter(run=child).order_by("position")
    assert [row.role for row in rows] == ["user", "assistant", "assistant", "tool_result", "assistant"]
    assert rows[0].content["parts"][0]["content"] == "Find the tests."
    [call] = AgentRunToolCall.objects.filter(run=child)
    assert (call.tool_name, call.status, call.output) == ("Bash", "completed", "ran ls")
    # What the main agent sees of it, and what is counted where.
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


def test_rules_and_guards_hold_for_the_calls_of_a_sub_agent(
    session_run: MakeRun, program: StubProgram, told: Told
) -> None:
    """Also for tools that the settings list."""
    told(denies=lambda context: Verdict.deny("Not this.") if context.tool_name == "Read" else None)
    policies = {
        "approvals": [{"tools": "Bash", "action": "deny", "reason": "No shell."}, {"tools": "Write", "action": "ask"}],
        "hooks": [use("denies", HookEvent.PRE_TOOL_USE)],
    }
    read, write = ({"tool": tool, "input": {"path": "a"}, "output": "x"} for tool in ("Read", "Write"))
    run = drive(session_run(agent(BASH, read, write), {"text": "Done."}, policies=policies))

    assert (run.status, program.ledger) == ("completed", ["Agent"])
    calls = AgentRunToolCall.objects.filter(run=child_of(run)).order_by("id")
    assert [(call.status, str(call.output)) for call in calls] == [
        ("error", "Denied by an approval rule: No shell."),
        ("error", "Denied by told_guard: Not this."),
        (
            "error",
            "Denied by an approval rule: a person has to approve this, and nobody is asked for a sub-agent: "
            "leave the call to the main agent",
        ),
    ]
    assert Event.objects.filter(log=run.pk, type="safety.block").count() == 3
    check(run)


def test_a_sub_agent_s_call_that_no_rule_lists_does_not_run(session_run: MakeRun, program: StubProgram) -> None:
    run = drive(session_run(agent({**BASH, "tool": "Write"}), {"text": "Done."}))

    assert (run.status, program.ledger) == ("completed", ["Agent"])
    assert "not allowed" in str(AgentRunToolCall.objects.get(run=child_of(run)).output)


def test_what_a_hook_knows_of_a_sub_agent_s_call(session_run: MakeRun, told: Told) -> None:
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


def test_a_sub_agent_ends_with_the_run_that_is_taken_from_its_worker(
    session_run: MakeRun, program: StubProgram
) -> None:
    """In one transaction: no worker may ever claim the run again."""
    at_work = agent({"text": "I look."}, {**BASH, "meanwhile": {"sleep": 60}})
    run = session_run(at_work, {"text": "Done."})
    ended: list[str] = []

    def take_away() -> None:
        eventually(lambda: "Bash" in program.ledger, why="the sub-agent's tool runs")
        with transaction.atomic():
            resume(run.pk, by="ann", message="Again.", kill=True)
            child = child_of(run)
            ended.extend([child.status, events(child)[-1].type])
        connection.close()

    threading.Thread(target=take_away, daemon=True).start()
    run = drive(run)

    assert ended == ["stopped", "run.stopped"]
    types = [event.type for event in events(run)]
    assert types.index("child_run.completed") < types.index("tool.end") < types.index("run.paused")
    assert run.status == "resumed"
    check(run)
    check(child_of(run))
