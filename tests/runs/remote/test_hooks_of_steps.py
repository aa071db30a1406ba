"""The hooks of an agent and of the site decide about the steps of remote runs before they start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_django import Settings

from runs.hooks.base import HookContext, HookEvent, Verdict
from runs.lifecycle import approval_decisions
from runs.lifecycle.approval_decisions import Decision
from runs.models import AgentRunToolCall, Approval
from tests.support.engine import DECIDES, added_parts, use, with_hooks
from tests.support.factories import make_project
from tests.support.remote import Program
from timeline import log

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def program(settings: Settings) -> Iterator[Program]:
    settings.AGENTOPS_HOOK_MODULES = ["tests.support.engine"]
    with added_parts():
        program = Program(make_project())
        program.start_run()
        program.claim()
        with_hooks(program.run, use("guards", HookEvent.PRE_TOOL_USE, tools="charge"))
        yield program
    DECIDES.clear()


def test_a_hook_denies_a_step(program: Program) -> None:
    DECIDES["guards"] = lambda context: Verdict.deny("too expensive")
    denied = program.start(name="charge")
    assert (denied["state"], denied["error"]["message"]) == ("denied", "Denied by told_guard: too expensive")
    assert program.start("2", "refund")["state"] == "run"
    decided = log.events_of(program.run.pk).filter(type="hook.decided").values_list("payload__verdict", flat=True)
    assert list(decided) == ["deny"]


def test_a_hook_sees_and_changes_the_input(program: Program) -> None:
    contexts: list[HookContext] = []

    def decide(context: HookContext) -> Verdict:
        contexts.append(context)
        return Verdict.modify_args({"cents": 100})

    DECIDES["guards"] = decide
    started = program.start(name="charge", input={"cents": 500})
    assert (started["state"], started["input"]) == ("run", {"cents": 100})
    assert (contexts[0].tool_name, contexts[0].arguments) == ("charge", {"cents": 500})
    assert AgentRunToolCall.objects.get(run=program.run).changed_arguments == {"cents": 100}


def test_a_hook_asks_a_person(program: Program) -> None:
    DECIDES["guards"] = lambda context: Verdict.ask("look twice")
    released = program.start(name="charge", input={"cents": 500})
    assert (released["state"], released["reason"]) == ("released", "approval")
    approval = Approval.objects.get(run=program.run)
    assert (approval.requested_by, approval.reason) == ("hook:told_guard", "look twice")
    approval_decisions.decide(program.run.pk, approval.call_id, Decision(approves=True), by="oscar")

    program.claim()
    assert program.start(name="charge", input={"cents": 500})["state"] == "run"
    assert program.op("finish", value=1) == {"state": "done"}
