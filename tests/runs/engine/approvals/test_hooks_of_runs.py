"""Hooks in runs: denying, changing, adding and stopping, and the events that record it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from runs.hooks.base import HookContext, HookEvent, Verdict
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall
from runs.statuses import RunStatus, ToolStatus
from runs.upkeep import replay_check
from runs.worker.worker import Worker
from tests.support.engine import DieAt, MakeScripted, use, with_hooks
from tests.support.factories import drive
from tests.support.run_checks import check, events
from tests.support.secret_samples import TOKENS

pytestmark = pytest.mark.django_db(transaction=True)
Words = Callable[[], list[str]]
Told = Callable[..., None]
PRE = HookEvent.PRE_TOOL_USE


def verdicts(run: AgentRun) -> list[tuple[Any, ...]]:
    decided = [event for event in events(run) if event.type == "hook.decided"]
    return [(event.payload["event"], event.payload["verdict"], event.step) for event in decided]


def texts(run: AgentRun, role: str) -> list[str]:
    rows = AgentRunMessage.objects.filter(run=run, role=role).order_by("position")
    return [row.content["parts"][0]["content"] for row in rows]


def assert_sound(run: AgentRun) -> None:
    check(run)
    assert replay_check.differences(run.pk) == []


@pytest.mark.parametrize("tool", ["ledger_once", "ledger_read"])
def test_a_denied_call_does_not_run_and_the_model_gets_the_reason(
    scripted: MakeScripted, told: Told, effects: Words, tool: str
) -> None:
    told(no=lambda _: Verdict.deny("not today"))
    run = drive(with_hooks(scripted(calls=[[tool]]), use("no", PRE)))

    assert (run.status, effects()) == (RunStatus.COMPLETED, [])
    call = AgentRunToolCall.objects.get(run=run)
    assert (call.status, call.starts, call.output) == (ToolStatus.DENIED, 0, "Denied by told_guard: not today")
    assert texts(run, "tool_result") == ["Denied by told_guard: not today"]
    order = [event.type for event in events(run) if event.step == 1 and event.seq > 3]
    assert order.index("tool.end") < order.index("hook.decided") < order.index("safety.block")
    decided = next(event for event in events(run) if event.type == "hook.decided")
    assert decided.ref_id == call.pk
    assert {"hook": "told_guard", "reason": "not today", "tool_name": tool}.items() <= decided.payload.items()
    assert_sound(run)


def test_the_reason_of_a_block_has_a_code_and_no_secret(scripted: MakeScripted, told: Told) -> None:
    secret = TOKENS["github"]()
    told(no=lambda _: Verdict.deny(f"{secret} is a secret"))
    run = drive(with_hooks(scripted(calls=[["ledger_read"]]), use("no", PRE)))

    [blocked] = [event.payload for event in events(run) if event.type == "safety.block"]
    assert blocked["code"] == "told_guard"
    assert blocked["reason"].startswith("[REDACTED:")
    assert blocked["reason"].endswith(" is a secret")
    assert secret not in str([event.payload for event in events(run)])
    assert_sound(run)


def test_changed_arguments_survive_a_crash(scripted: MakeScripted, told: Told, die_at: DieAt, worker: Worker) -> None:
    """The worker dies after the start; the next worker runs the call with the stored arguments."""
    told(change=lambda _: Verdict.modify_args({"n": 99}, "rounder"))
    run = with_hooks(scripted(calls=[["ledger_read"]]), use("change", PRE))
    assert die_at(run, "tool.marked_running")
    told(change=lambda _: Verdict.modify_args({"n": 7}))
    run = drive(run, worker)

    call = AgentRunToolCall.objects.get(run=run)
    assert (call.output, call.input, call.changed_arguments) == ("did 99", {"n": 10}, {"n": 99})
    [decided] = [event.payload for event in events(run) if event.type == "hook.decided"]
    assert decided["diff"] == {"n": {"from": 10, "to": 99}}
    assert_sound(run)


def test_a_hook_runs_again_if_its_verdict_was_lost(
    scripted: MakeScripted, told: Told, die_at: DieAt, worker: Worker, effects: Words
) -> None:
    asked: list[str] = []
    told(count=lambda context: asked.append(context.call_id))
    run = with_hooks(scripted(calls=[["ledger_once"]]), use("count", PRE))
    assert die_at(run, "hooks.decided")
    run = drive(run, worker)
    assert (asked, effects()) == (["call-1-0"] * 2, ["call-1-0"])
    assert verdicts(run) == [("PreToolUse", "allow", 1)]
    assert_sound(run)


def test_post_tool_hooks_run_after_a_success_and_after_the_last_failure(scripted: MakeScripted, told: Told) -> None:
    """PostToolUse after a success; PostToolUseFailure once, after the last attempt; neither for a denied call."""
    seen: list[tuple[Any, ...]] = []

    def note(context: HookContext) -> Verdict | None:
        seen.append((context.event, context.call_id, context.output))
        denied = context.event is PRE and context.call_id == "call-1-1"
        return Verdict.deny("no") if denied else None

    told(note=note)
    run = with_hooks(scripted(calls=[["ledger_read", "ledger_once", "nothing"], ["ask"]]), use("note"))
    run = drive(run)
    after = [(event, call, output) for event, call, output in seen if event.startswith("Post")]
    assert after == [(HookEvent.POST_TOOL_USE, "call-1-0", "did 10")]
    assert [call.status for call in AgentRunToolCall.objects.filter(run=run).order_by("id")][:3] == [
        ToolStatus.COMPLETED,
        ToolStatus.DENIED,
        ToolStatus.ERROR,
    ]
    assert_sound(run)


def test_a_failed_call_is_reported_once(scripted: MakeScripted, told: Told, ledger: Any) -> None:
    """Only the last attempt is reported."""
    ledger.mkdir()  # makes every attempt of the tool fail
    seen: list[Any] = []
    told(note=lambda context: seen.append((context.event, str(context.output)[:17])))
    run = scripted(calls=[["ledger_read"]], tool_max_retries=2)
    drive(with_hooks(run, use("note", HookEvent.POST_TOOL_USE, HookEvent.POST_TOOL_USE_FAILURE)))
    assert AgentRunToolCall.objects.get(run=run).attempts == 3
    assert seen == [(HookEvent.POST_TOOL_USE_FAILURE, "IsADirectoryError")]


def test_turn_hooks_run_once_for_each_turn(scripted: MakeScripted, told: Told, worker: Worker, settings: Any) -> None:
    """Each step has another lease holder, so each claim reads the earlier verdicts from the log."""
    settings.AGENTOPS_SLICE_S = 0.0
    asked: list[tuple[str, int, str]] = []
    told(note=lambda context: asked.append((context.event, context.step, context.answer)))
    turns = [HookEvent.AGENT_START, HookEvent.TURN_START, HookEvent.TURN_END, HookEvent.AGENT_STOP]
    run = drive(with_hooks(scripted(calls=[["ledger_read"]]), use("note", *turns)), worker)

    assert run.status == RunStatus.COMPLETED
    assert asked == [
        ("AgentStart", 1, ""),
        ("TurnStart", 1, ""),
        ("TurnEnd", 1, "Step 1. "),
        ("TurnStart", 2, ""),
        ("TurnEnd", 2, "All done. "),
        ("AgentStop", 2, "All done. "),
    ]
    assert [(event, step) for event, _, step in verdicts(run) if "ToolUse" not in event] == [
        (event, step) for event, step, _ in asked
    ]
    assert_sound(run)


def test_messages_of_hooks_are_added_once_and_with_their_role(
    scripted: MakeScripted, told: Told, die_at: DieAt, worker: Worker
) -> None:
    told(
        noon=lambda context: Verdict.append_context("It is noon.") if context.step == 1 else None,
        brief=lambda context: Verdict.system_message("Be brief.") if context.step == 1 else None,
    )
    run = with_hooks(
        scripted(calls=[["ledger_read"]]),
        use("noon", HookEvent.AGENT_START, guard=False),
        use("brief", HookEvent.POST_TOOL_USE, guard=False),
    )
    assert die_at(run, "model.before_call")
    run = drive(run, worker)
    assert run.status == RunStatus.COMPLETED
    assert texts(run, "user") == ["Go.", "It is noon."]
    assert texts(run, "system") == ["Follow the script.", "Be brief."]
    assert_sound(run)


def test_a_hook_can_keep_a_run_from_completing(scripted: MakeScripted, told: Told, model_calls: Any) -> None:
    told(more=lambda context: Verdict.append_context("And the tests?") if context.step == 1 else None)
    run = drive(with_hooks(scripted(calls=[]), use("more", HookEvent.AGENT_STOP)))
    assert (run.status, model_calls()) == (RunStatus.COMPLETED, [1, 2])
    assert texts(run, "user") == ["Go.", "And the tests?"]
    assert_sound(run)


@pytest.mark.parametrize("event", [HookEvent.AGENT_START, HookEvent.TURN_END, HookEvent.POST_TOOL_USE])
def test_a_hook_stops_a_run(scripted: MakeScripted, told: Told, effects: Words, event: HookEvent) -> None:
    told(enough=lambda _: Verdict.stop("enough"))
    run = drive(with_hooks(scripted(calls=[["ledger_once", "ledger_once"]]), use("enough", event)))
    assert (run.status, run.status_reason) == (RunStatus.STOPPED, "hook")
    stopped = next(each for each in events(run) if each.type == "run.stopped")
    assert stopped.payload["by"] == "hook:told_guard"
    expected = {HookEvent.AGENT_START: 0, HookEvent.POST_TOOL_USE: 1, HookEvent.TURN_END: 2}
    assert len(effects()) == expected[event]
    assert_sound(run)


FAILURES: dict[str, tuple[Callable[[HookContext], Any], str]] = {
    "raises": (lambda _: 1 / 0, "raised ZeroDivisionError: division by zero"),
    "hangs": (lambda _: threading.Event().wait(2), "no verdict within 0.1 s"),
    "returns junk": (lambda _: {"verdict": "allow"}, "returned an invalid verdict: {'verdict': 'allow'}"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_a_failing_observer_changes_nothing_and_a_failing_guard_denies(
    scripted: MakeScripted, told: Told, effects: Words, settings: Any, case: str
) -> None:
    decide, reason = FAILURES[case]
    settings.AGENTOPS_HOOK_TIMEOUT_S = 0.1 if case == "hangs" else 20
    told(broken=decide)
    at = [PRE, HookEvent.POST_TOOL_USE, HookEvent.AGENT_STOP]
    run = drive(
        with_hooks(
            scripted(calls=[["ledger_once"], ["ledger_read"]]),
            use("broken", *at, guard=False),
            use("broken", PRE, tools="ledger_read"),
        )
    )
    assert (run.status, effects()) == (RunStatus.COMPLETED, ["call-1-0"])
    failed = [event.payload for event in events(run) if event.type == "hook.decided" and event.payload.get("failed")]
    assert {payload["reason"] for payload in failed} == {reason}
    assert {payload["verdict"] for payload in failed} == {"allow", "continue", "deny"}
    denied = AgentRunToolCall.objects.get(run=run, tool_name="ledger_read")
    assert (denied.status, denied.starts) == (ToolStatus.DENIED, 0)
    assert_sound(run)


def test_a_site_configures_hooks_for_every_agent(scripted: MakeScripted, settings: Any, effects: Words) -> None:
    settings.AGENTOPS_HOOKS = ["command_guard"]
    assert drive(scripted(calls=[["ledger_once"]])).status == RunStatus.COMPLETED
    assert len(effects()) == 1
    settings.AGENTOPS_HOOKS = ["no_such_hook"]
    run = drive(scripted(calls=[["ledger_once"]]))
    assert (run.status, run.error_type, len(effects())) == (RunStatus.PAUSED, "unusable_agent", 1)
    assert "unknown hook 'no_such_hook'" in run.error_message
