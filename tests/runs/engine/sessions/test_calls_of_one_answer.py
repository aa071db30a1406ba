"""Several calls in one answer: the program may request permission for each before it reports any result."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from runs.hooks.base import HookContext, HookEvent, Verdict
from runs.models import AgentRun, AgentRunToolCall
from tests.support.engine import use
from tests.support.factories import drive
from tests.support.programs.stub_cli import StubProgram
from tests.support.run_checks import check
from timeline.models import Event

pytestmark = pytest.mark.django_db(transaction=True)
MakeRun = Callable[..., AgentRun]
Told = Callable[..., None]
PRE = HookEvent.PRE_TOOL_USE
BASH = {"tool": "Bash", "input": {"command": "ls"}, "output": "ran {command}"}
READ = {"tool": "Read", "input": {"path": "a.txt"}, "output": "read {path}"}
WRITE = {"tool": "Write", "input": {"path": "a.txt"}, "output": "wrote {path}"}
DENY_BASH = {"approvals": [{"tools": "Bash", "action": "deny", "reason": "No shell."}]}


def calls_of(run: AgentRun) -> list[tuple[str, str]]:
    calls = AgentRunToolCall.objects.filter(run=run).order_by("id")
    return [(call.status, str(call.output)) for call in calls]


@pytest.mark.parametrize("tools", [[BASH, READ], [READ, BASH]])
def test_a_denied_call_does_not_block_the_other_call(
    session_run: MakeRun, program: StubProgram, tools: list[dict[str, Any]]
) -> None:
    """The program gets the denial immediately, after it is stored."""
    run = drive(session_run({"tools": tools}, {"text": "Done."}, policies=DENY_BASH))

    assert (run.status, run.result, program.ledger) == ("completed", "Done.", ["Read"])
    denied = ("denied", "Denied by an approval rule: No shell.")
    assert sorted(calls_of(run)) == [("completed", "read a.txt"), denied]
    assert Event.objects.filter(log=run.pk, type="safety.block").count() == 1
    check(run)


def test_a_call_that_waits_for_approval_does_not_block_the_other_call(
    session_run: MakeRun, program: StubProgram
) -> None:
    """Otherwise the worker would be occupied until a person decides."""
    run = drive(session_run({"tools": [READ, WRITE]}, {"text": "Done."}))

    assert (run.status, run.status_reason, run.lease_owner) == ("waiting", "approval", None)
    assert program.ledger == ["Read"]
    assert [status for status, _ in calls_of(run)] == ["completed", "planned"]


@pytest.mark.parametrize("listed", [["Bash"], []])
def test_arguments_changed_by_a_hook_run_without_approval_if_the_tool_is_allowed(
    session_run: MakeRun, program: StubProgram, told: Told, listed: list[str]
) -> None:
    """The program requests permission for changed arguments even if its rules allow the tool."""
    told(changes=lambda _: Verdict.modify_args({"command": "ls"}))
    policies = {"hooks": [use("changes", PRE)]}
    shouted = {**BASH, "input": {"command": "LS"}}
    run = drive(session_run(shouted, {"text": "Done."}, policies=policies, settings={"allowed_tools": listed}))

    if listed:
        assert calls_of(run) == [("completed", "ran ls")]
    else:
        assert (run.status_reason, program.ledger) == ("approval", [])


def _raise(_: HookContext) -> Verdict:
    raise RuntimeError("broken")


@pytest.mark.parametrize("fails", [_raise, lambda _: time.sleep(1), lambda _: "junk"])
def test_a_failing_guard_denies(
    session_run: MakeRun, program: StubProgram, told: Told, settings: Any, fails: Callable[[HookContext], Any]
) -> None:
    """The denial is stored before the program receives it."""
    settings.AGENTOPS_HOOK_TIMEOUT_S = 0.2
    told(guards=fails)
    run = drive(session_run(BASH, {"text": "I could not."}, policies={"hooks": [use("guards", PRE)]}))

    assert (run.status, run.result, program.ledger) == ("completed", "I could not.", [])
    [(status, output)] = calls_of(run)
    assert (status, output.startswith("Denied by")) == ("denied", True)


def test_a_failing_observer_changes_nothing(session_run: MakeRun, program: StubProgram, told: Told) -> None:
    told(watches=_raise)
    run = drive(session_run(BASH, {"text": "Done."}, policies={"hooks": [use("watches", PRE, guard=False)]}))

    assert (run.status, program.ledger) == ("completed", ["Bash"])
