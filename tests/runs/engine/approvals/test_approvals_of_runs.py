"""Approvals: the run waits without a worker, accepts one decision, and continues with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connections
from pydantic_ai.messages import ToolCallPart

from agentops.accounts.models import AuditEntry, Notification
from agentops.base.refusals import Invalid, Refusal
from runs.actions import approvals, run_actions
from runs.actions.resume import resume
from runs.hooks.base import HookContext, HookEvent, Verdict
from runs.lifecycle import approval_decisions
from runs.lifecycle.approval_decisions import Decision
from runs.models import AgentRun, AgentRunToolCall, Approval, RunCommand
from runs.providers.base import ModelCall
from runs.statuses import RunStatus, ToolStatus
from runs.upkeep import replay_check
from runs.worker.in_process import advance_ready
from runs.worker.worker import Worker
from tests.support.engine import DieAt, MakeScripted, use, with_hooks
from tests.support.factories import drive
from tests.support.run_checks import check, events, refuses

pytestmark = pytest.mark.django_db(transaction=True)
Words = Callable[[], list[str]]
Told = Callable[..., None]
ASK = [{"tools": "ledger_.*", "action": "ask", "reason": "it writes"}]
APPROVE, DENY = Decision(approves=True), Decision(approves=False)
TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


def waiting(scripted: MakeScripted, *, calls: Any = (("ledger_once",),), rules: Any = ASK, **settings: Any) -> AgentRun:
    run = drive(with_hooks(scripted(calls=[list(step) for step in calls], **settings), approvals=rules))
    assert (run.status, run.status_reason, run.lease_owner) == (RunStatus.WAITING, "approval", None)
    return run


def decide(run: AgentRun, decision: Decision, by: str = "user:oscar") -> approval_decisions.DecisionResult:
    call = Approval.objects.filter(run=run).order_by("-pk").values_list("call", flat=True)[0]
    return approvals.decide(by, AgentRun.objects.get(pk=run.pk), call, decision)


def outputs(run: AgentRun) -> list[Any]:
    return list(AgentRunToolCall.objects.filter(run=run).order_by("id").values_list("output", flat=True))


def assert_sound(run: AgentRun) -> None:
    check(run)
    assert replay_check.differences(run.pk) == []


def test_a_run_waits_and_continues_with_the_approved_call(scripted: MakeScripted, effects: Words) -> None:
    run = waiting(scripted)
    approval = Approval.objects.get(run=run)
    assert (approval.state, approval.arguments, approval.reason) == ("pending", {"n": 10}, "it writes")
    assert approval.expires_at == run.not_before
    requested = next(event for event in events(run) if event.type == "approval.requested")
    assert (requested.payload["arguments"], requested.ref_id) == ('{"n":10}', approval.call_id)
    assert Notification.objects.get(pk=approval.notification_id).kind == "approval"
    assert effects() == []

    decide(run, APPROVE)
    run = drive(run)

    assert (run.status, effects(), outputs(run)) == (RunStatus.COMPLETED, ["call-1-0"], ["did 10"])
    resolved = next(event for event in events(run) if event.type == "approval.resolved")
    assert (resolved.payload["decision"], resolved.payload["by"]) == ("approved", "user:oscar")
    entry = AuditEntry.objects.get(action="run.approval_decided")
    assert entry.actor == "user:oscar"
    assert_sound(run)


def test_the_call_runs_with_the_approver_s_arguments_and_stores_the_difference(scripted: MakeScripted) -> None:
    run = waiting(scripted)
    decide(run, Decision(approves=True, arguments={"n": 3}))
    run = drive(run)
    assert outputs(run) == ["did 3"]
    approval = Approval.objects.get(run=run)
    assert (approval.arguments, approval.changes) == ({"n": 10}, {"n": {"from": 10, "to": 3}})
    resolved = next(event for event in events(run) if event.type == "approval.resolved")
    assert resolved.payload["diff"] == {"n": {"from": 10, "to": 3}}
    assert AgentRunToolCall.objects.get(run=run).input == {"n": 10}
    assert_sound(run)


def test_the_model_sees_the_reason_of_a_denial_in_the_same_run(scripted: MakeScripted, effects: Words) -> None:
    run = waiting(
        scripted, calls=[["ledger_once", "ledger_read"], ["ledger_read"]], rules=[ASK[0] | {"tools": ".*_once"}]
    )
    decide(run, Decision(approves=False, message="Use the copy instead."))
    run = drive(run)
    assert (run.status, effects()) == (RunStatus.COMPLETED, ["call-1-1", "call-2-0"])
    call = AgentRunToolCall.objects.filter(run=run).earliest("id")
    assert (call.status, call.starts) == (ToolStatus.DENIED, 0)
    assert call.output == "A person denied this call, so it was not run. Use the copy instead."
    [part] = call.result_message.content["parts"]  # type: ignore[union-attr]
    assert (part["content"], part["outcome"]) == (call.output, "denied")
    assert_sound(run)


def test_an_approval_for_the_whole_run_covers_the_tool_and_no_other(scripted: MakeScripted, effects: Words) -> None:
    run = waiting(scripted, calls=[["ledger_once"], ["ledger_once"], ["ledger_read"]])
    decide(run, Decision(approves=True, always=True))
    run = drive(run)
    assert (run.status, effects()) == (RunStatus.WAITING, ["call-1-0", "call-2-0"])
    assert Approval.objects.get(run=run, state="pending").tool_name == "ledger_read"
    standing = [event for event in events(run) if event.type == "approval.resolved" and event.step == 2]
    assert [(event.payload["by"], event.payload["always"]) for event in standing] == [("user:oscar", True)]
    assert_sound(run)


@pytest.mark.parametrize("point", ["approval.before", "approval.in_transaction", "hooks.before"])
def test_a_crash_before_the_wait_requests_one_approval(
    scripted: MakeScripted, die_at: DieAt, worker: Worker, effects: Words, point: str
) -> None:
    run = with_hooks(scripted(calls=[["ledger_once"]]), approvals=ASK)
    assert die_at(run, point)
    run = drive(run, worker)
    assert (run.status_reason, Approval.objects.filter(run=run).count(), effects()) == ("approval", 1, [])
    assert Notification.objects.filter(run_id=run.pk).count() == 1
    assert_sound(run)


@pytest.mark.parametrize(
    "point",
    ["claim.committed", "hooks.before", "hooks.decided", "tool.before_start", "tool.returned", "result.in_transaction"],
)
@pytest.mark.parametrize("tool", ["ledger_idempotent", "ledger_once"])
def test_a_crash_after_the_decision_keeps_it_and_does_not_repeat_the_call(
    scripted: MakeScripted, die_at: DieAt, worker: Worker, effects: Words, *, point: str, tool: str
) -> None:
    """A started call repeats only if its tool is idempotent; otherwise a person resolves the outcome."""
    run = waiting(scripted, calls=[[tool]])
    decide(run, Decision(approves=True, arguments={"n": 3}))
    assert die_at(run, point)
    run = drive(run, worker)
    assert Approval.objects.filter(run=run).count() == 1
    if point in ("tool.returned", "result.in_transaction") and tool == "ledger_once":
        assert (run.status_reason, effects()) == ("unknown_tool", ["call-1-0"])
    else:
        assert (run.status, outputs(run), set(effects())) == (RunStatus.COMPLETED, ["did 3"], {"call-1-0"})
        assert tool == "ledger_idempotent" or len(effects()) == 1
    assert_sound(run)


def test_two_concurrent_decisions_store_the_first_and_the_second_sees_who_decided(
    scripted: MakeScripted, effects: Words
) -> None:
    run = waiting(scripted)
    start = threading.Barrier(2)

    def go(by: str, decision: Decision) -> Any:
        start.wait()
        try:
            return decide(run, decision, by=by)
        except Refusal as refusal:
            return refusal
        finally:
            connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(go, ["user:oscar", "user:bob"], [APPROVE, DENY]))
    [refusal] = [answer for answer in answers if isinstance(answer, Refusal)]
    assert refusal.code == "approval_decided"
    [winner] = [answer for answer in answers if not isinstance(answer, Refusal)]
    assert str(refusal) == f"{winner.approval.decided_by} already {winner.approval.state} this call"
    assert (
        decide(run, APPROVE if winner.approval.state == "approved" else DENY, winner.approval.decided_by).is_new
        is False
    )
    run = drive(run)
    assert len(effects()) == (winner.approval.state == "approved")
    assert len([event for event in events(run) if event.type == "approval.resolved"]) == 1
    assert_sound(run)


@pytest.mark.parametrize("on_expiry", ["deny", "pause"])
def test_an_undecided_approval_expires(scripted: MakeScripted, worker: Worker, effects: Words, on_expiry: str) -> None:
    run = waiting(scripted, rules=[ASK[0] | {"expires": "5m", "on_expiry": on_expiry}])
    approval = Approval.objects.get(run=run)
    assert (approval.expires_at - approval.created_at).total_seconds() == 300
    advance_ready(worker)
    assert Approval.objects.get(run=run).state == "pending"
    AgentRun.objects.filter(pk=run.pk).update(not_before=datetime(2020, 1, 1, tzinfo=UTC))
    approval_decisions.expire_due()
    run = drive(run, worker) if on_expiry == "deny" else AgentRun.objects.get(pk=run.pk)
    assert Approval.objects.get(run=run).state == "expired"
    assert effects() == []
    if on_expiry == "deny":
        assert (run.status, outputs(run)) == (RunStatus.COMPLETED, [approval_decisions.EXPIRED])
    else:
        assert (run.status, run.status_reason) == (RunStatus.PAUSED, "escalated")
        assert Notification.objects.filter(run_id=run.pk, kind="escalated").count() == 1
    with refuses("approval_decided", match="expired"):
        decide(run, APPROVE)
    assert_sound(run)


@pytest.mark.parametrize("command", ["pause", "stop"])
def test_a_run_that_is_paused_or_stopped_cancels_its_approval(
    scripted: MakeScripted, effects: Words, command: str
) -> None:
    run = waiting(scripted)
    getattr(run_actions, command)("user:oscar", run)
    approval = Approval.objects.get(run=run)
    assert approval.state == "cancelled"
    with refuses("approval_decided", match="the run is"):
        decide(run, APPROVE)
    if command == "pause":
        drive(resume(run.pk, by="user:oscar").run)
    assert effects() == []
    assert_sound(AgentRun.objects.get(pk=run.pk))


def test_a_message_waits_for_the_decision(scripted: MakeScripted) -> None:
    run = waiting(scripted)
    run_actions.send("user:oscar", run, "Hurry up.")
    assert AgentRun.objects.get(pk=run.pk).status == RunStatus.WAITING
    decide(run, APPROVE)
    run = drive(run)
    assert (run.status, RunCommand.objects.get(run=run).outcome) == (RunStatus.COMPLETED, "applied")


RULES: list[tuple[Any, Any, str]] = [
    ([], [{"tools": "ledger_once", "action": "deny", "reason": "never"}], "denied"),
    ([{"tools": "ledger_once", "action": "deny"}], [{"tools": ".*", "action": "auto"}], "denied"),
    ([{"tools": ".*", "action": "auto"}], [{"tools": "ledger_once", "action": "ask"}], "asked"),
    ([], [{"tools": "ledger_once", "arguments": {"n": "^1.$"}, "action": "ask"}], "asked"),
    ([], [{"tools": "ledger_once", "arguments": {"n": "^2"}, "action": "ask"}], "run"),
    ([], [{"tools": "ledger_once", "arguments": {"m": ".*"}, "action": "ask"}], "run"),
    ([], [{"tools": "ledger_once", "action": "auto"}, {"tools": ".*", "action": "deny"}], "run"),
    ([], [{"tools": "once", "action": "ask"}], "run"),
]


@pytest.mark.parametrize(("of_project", "of_agent", "expected"), RULES)
def test_the_first_match_of_each_list_applies_and_the_stricter_list_wins(
    scripted: MakeScripted, effects: Words, of_project: Any, of_agent: Any, expected: str
) -> None:
    run = with_hooks(scripted(calls=[["ledger_once"]]), approvals=of_agent)
    approvals.set_rules("user:oscar", run.project, of_project)
    run = drive(run)
    happened = "run" if effects() else "asked" if run.status == RunStatus.WAITING else "denied"
    assert happened == expected
    assert_sound(run)


def test_a_hook_can_ask_and_its_later_denial_overrides_an_approval(
    scripted: MakeScripted, told: Told, effects: Words
) -> None:
    told(who=lambda _: Verdict.ask("expensive"))
    run = drive(with_hooks(scripted(calls=[["ledger_once"]]), use("who", HookEvent.PRE_TOOL_USE)))
    approval = Approval.objects.get(run=run)
    assert (approval.requested_by, approval.reason) == ("hook:told_guard", "expensive")
    told(who=lambda _: Verdict.deny("not any more"))
    decide(run, APPROVE)
    run = drive(run)
    assert (effects(), outputs(run)) == ([], ["Denied by told_guard: not any more"])
    assert_sound(run)


def test_an_approval_shows_the_arguments_after_the_hooks(scripted: MakeScripted, told: Told) -> None:
    told(half=lambda _: Verdict.modify_args({"n": 5}))
    hooks = use("half", HookEvent.PRE_TOOL_USE)
    run = drive(with_hooks(scripted(calls=[["ledger_once"]]), hooks, approvals=ASK))
    assert Approval.objects.get(run=run).arguments == {"n": 5}
    decide(run, APPROVE)
    run = drive(run)
    assert outputs(run) == ["did 5"]
    assert_sound(run)


def test_arguments_that_a_hook_changes_after_the_approval_are_denied(
    scripted: MakeScripted, told: Told, effects: Words
) -> None:
    told(change=lambda _: None)
    hooks = use("change", HookEvent.PRE_TOOL_USE)
    run = drive(with_hooks(scripted(calls=[["ledger_once"]]), hooks, approvals=ASK))
    told(change=lambda _: Verdict.modify_args({"n": 666}))
    decide(run, APPROVE)
    run = drive(run)
    assert effects() == []
    assert "after they were approved" in outputs(run)[0]


def leaks(call: ModelCall) -> Any:
    if call.number == 1:
        yield ToolCallPart("ledger_once", {"n": 1, "note": {"key": TOKEN}}, "call-1-0")
    yield "Done."


def test_an_edit_keeps_the_secrets_that_the_approver_saw_redacted(scripted: MakeScripted, told: Told) -> None:
    """An unchanged placeholder becomes the secret again; a partly changed placeholder is refused."""
    seen: list[Any] = []

    def look(context: HookContext) -> None:
        seen.append(context.arguments)

    told(look=look)
    hooks = use("look", HookEvent.PRE_TOOL_USE)
    run = drive(with_hooks(scripted(leaks), hooks, approvals=ASK))
    shown = Approval.objects.get(run=run).arguments
    assert TOKEN not in str(shown)
    with pytest.raises(Invalid, match="placeholder"):
        decide(run, Decision(approves=True, arguments={"n": 1, "note": {"key": shown["note"]["key"] + "x"}}))
    decide(run, Decision(approves=True, arguments={"n": 2, "note": shown["note"]}))
    run = drive(run)
    assert seen == [{"n": 1, "note": {"key": TOKEN}}, {"n": 2, "note": {"key": TOKEN}}]
    assert TOKEN not in str([event.payload for event in events(run)])
    assert_sound(run)


@pytest.mark.parametrize(
    ("decision", "pointer"),
    [
        (Decision(approves=True, arguments={"a": "\0"}), "/arguments"),
        (Decision(approves=True, arguments={"a": "\ud800"}), "/arguments"),
        (Decision(approves=False, arguments={}), "/decision"),
        (Decision(approves=False, message="x" * 10_001), "/message"),
    ],
)
def test_an_invalid_decision_is_refused(scripted: MakeScripted, decision: Decision, pointer: str) -> None:
    run = waiting(scripted)
    with pytest.raises(Invalid) as refusal:
        decide(run, decision)
    assert refusal.value.data["pointer"] == pointer
    assert Approval.objects.get(run=run).state == "pending"


def test_arguments_may_contain_the_json_escape_of_nul(scripted: MakeScripted) -> None:
    """The text holds the six characters of the escape and no NUL character."""
    run = waiting(scripted)
    decide(run, Decision(approves=True, arguments={"n": 3, "note": r"text.split('\u0000')"}))
    run = drive(run)
    assert AgentRunToolCall.objects.get(run=run).changed_arguments == {"n": 3, "note": r"text.split('\u0000')"}
    assert_sound(run)


def test_a_call_without_an_approval_cannot_be_decided(scripted: MakeScripted) -> None:
    run = drive(scripted(calls=[["ledger_once"]]))
    call = AgentRunToolCall.objects.get(run=run)
    with refuses("approval_not_requested"):
        approvals.decide("user:oscar", run, call.pk, APPROVE)
