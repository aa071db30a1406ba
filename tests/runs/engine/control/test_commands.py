"""Stop, pause and send: for a running, queued or waiting run, and just before it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from pydantic_ai.messages import ModelRequest, ToolCallPart, UserPromptPart

from runs import chaos
from runs.actions.resume import resume
from runs.engine import decisions
from runs.lifecycle import inbox
from runs.models import AgentRun, AgentRunToolCall, RunCommand
from runs.providers.base import ModelCall
from runs.statuses import RunStatus, ToolStatus
from runs.worker.worker import Worker
from tests.support.engine import MakeScripted
from tests.support.factories import drive
from tests.support.run_checks import check, events, refuses
from tests.support.scripted_model import Move

pytestmark = pytest.mark.django_db(transaction=True)
Words = Callable[[], list[str]]
CALLS = [["ledger_read"] * 3, ["ledger_read"]]


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], Any]], None]:
    """Run a function the first time the drive reaches a crash point."""
    planned: dict[str, Callable[[], Any]] = {}
    monkeypatch.setattr(chaos, "point", lambda name: planned.pop(name, lambda: None)())

    def when(name: str, do: Callable[[], Any]) -> None:
        planned[name] = do

    return when


At = Callable[[str, Callable[[], Any]], None]


def statuses(run: AgentRun) -> list[str]:
    return list(AgentRunToolCall.objects.filter(run=run).order_by("id").values_list("status", flat=True))


def nothing_unread(run: AgentRun) -> None:
    assert not RunCommand.objects.filter(run=run, applied_at=None).exists()


def test_a_stop_during_a_tool_denies_the_others(scripted: MakeScripted, at: At, effects: Words) -> None:
    run = scripted(calls=CALLS)
    at("tool.running", lambda: inbox.stop(run.pk, by="ann"))

    run = drive(run)

    assert (run.status, run.status_reason) == (RunStatus.STOPPED, "operator")
    assert statuses(run) == [ToolStatus.COMPLETED, ToolStatus.DENIED, ToolStatus.DENIED]
    assert len(effects()) == 1
    nothing_unread(run)
    check(run)
    with refuses("run_terminal"):
        inbox.send(run.pk, "Too late.", by="ann")


def test_a_stop_during_the_model_call_runs_no_later_call(scripted: MakeScripted, at: At, effects: Words) -> None:
    run = scripted(calls=CALLS)
    at("model.before_call", lambda: inbox.stop(run.pk, by="ann"))

    run = drive(run)

    assert run.status == RunStatus.STOPPED
    assert len(effects()) <= 1
    assert statuses(run)[1:] == [ToolStatus.DENIED] * 2
    check(run)


def test_a_pause_acts_after_the_tools_of_the_turn(
    scripted: MakeScripted, at: At, effects: Words, model_calls: Callable[[], list[int]]
) -> None:
    run = scripted(calls=CALLS)
    at("tool.running", lambda: inbox.pause(run.pk, by="ann"))

    run = drive(run)

    assert (run.status, run.status_reason, run.step_count) == (RunStatus.PAUSED, "operator", 1)
    assert statuses(run) == [ToolStatus.COMPLETED] * 3
    assert model_calls() == [1]
    nothing_unread(run)
    check(run)
    later = drive(resume(run.pk, by="ann").run)
    assert (later.status, later.step_count) == (RunStatus.COMPLETED, 3)
    check(later)


@pytest.mark.parametrize(
    "point", ["result.committed", "checkpoint.before", "turn.committed", "model.before_call", "end.before"]
)
def test_a_message_is_delivered_once_before_the_next_model_call(scripted: MakeScripted, at: At, point: str) -> None:
    """A message sent while the agent works belongs to the same run."""
    seen: list[list[str]] = []

    def play(call: ModelCall) -> Iterable[Move]:
        seen.append(
            [
                str(p.content)
                for m in call.history
                if isinstance(m, ModelRequest)
                for p in m.parts
                if isinstance(p, UserPromptPart)
            ]
        )
        yield ToolCallPart("ledger_read", {"n": 1}, "a") if call.number == 1 else "Done."

    run = scripted(play)
    at(point, lambda: inbox.send(run.pk, "And mind the gap.", by="ann"))

    run = drive(run)

    assert run.status == RunStatus.COMPLETED
    assert seen[0] == ["Go."]
    assert seen[-1] == ["Go.", "And mind the gap."]
    users = run.messages.filter(role="user").order_by("position")
    assert [m.content["parts"][0]["content"] for m in users] == ["Go.", "And mind the gap."]
    nothing_unread(run)
    check(run)


def test_a_message_with_a_known_key_is_posted_once(scripted: MakeScripted) -> None:
    run = scripted()
    for _ in range(3):
        inbox.send(run.pk, "Once.", by="ann", key="k")

    run = drive(run)

    assert [m.content["parts"][0]["content"] for m in run.messages.filter(role="user")] == ["Go.", "Once."]
    assert [event.type for event in events(run)].count("command.received") == 1


@pytest.mark.parametrize("point", ["end.before", "model.answered", "checkpoint.committed"])
@pytest.mark.parametrize("command", [inbox.stop, inbox.pause])
def test_a_command_just_before_the_end_is_not_left_unread(
    scripted: MakeScripted, at: At, point: str, command: Callable[..., Any]
) -> None:
    run = scripted()
    at(point, lambda: command(run.pk, by="ann"))

    run = drive(run)

    assert run.status in (RunStatus.COMPLETED, RunStatus.STOPPED, RunStatus.PAUSED)
    if command is inbox.stop:
        nothing_unread(run)
        assert run.status == RunStatus.STOPPED
    check(run)


def test_a_stop_wins_over_a_pause(scripted: MakeScripted, at: At) -> None:
    run = scripted(calls=CALLS)

    def both() -> None:
        inbox.pause(run.pk, by="ann")
        inbox.stop(run.pk, by="bob")

    at("tool.running", both)
    run = drive(run)

    assert run.status == RunStatus.STOPPED
    nothing_unread(run)
    check(run)


def test_a_queued_run_applies_commands_immediately(scripted: MakeScripted, worker: Worker) -> None:
    stopped, paused = scripted(calls=CALLS), scripted(calls=CALLS)

    inbox.stop(stopped.pk, by="ann")
    inbox.pause(paused.pk, by="ann")

    for run, status in ((stopped, RunStatus.STOPPED), (paused, RunStatus.PAUSED)):
        run.refresh_from_db()
        assert run.status == status
        assert not worker.drive(run.pk)
        nothing_unread(run)
        check(run)
    later = drive(resume(paused.pk, by="ann").run)
    assert later.status == RunStatus.COMPLETED
    check(later)


def test_a_message_for_a_queued_run_comes_after_its_prompt(scripted: MakeScripted) -> None:
    run = scripted()
    inbox.send(run.pk, "One more thing.", by="ann")

    run = drive(run)

    assert [m.role for m in run.messages.order_by("position")] == ["system", "user", "user", "assistant"]
    check(run)


def test_a_message_for_a_paused_run_reaches_its_successor(scripted: MakeScripted) -> None:
    """A message that arrives after a resumable run has ended goes to the run that continues it."""
    run = scripted(calls=CALLS)
    inbox.pause(run.pk, by="ann")
    inbox.send(run.pk, "While you were away.", by="ann")

    later = drive(resume(run.pk, by="ann", message="Go on.").run)

    users = [m.content["parts"][0]["content"] for m in later.messages.filter(role="user").order_by("position")]
    assert users == ["While you were away.", "Go on."]
    run.refresh_from_db()
    nothing_unread(run)


@pytest.mark.parametrize(("command", "status"), [(inbox.stop, RunStatus.STOPPED), (inbox.pause, RunStatus.PAUSED)])
def test_a_waiting_run_applies_commands_immediately_and_closes_its_calls(
    scripted: MakeScripted, command: Callable[..., Any], status: RunStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = waiting_for_an_outcome(scripted, monkeypatch)

    command(run.pk, by="ann")

    run.refresh_from_db()
    assert run.status == status
    assert statuses(run) == [ToolStatus.UNKNOWN, ToolStatus.DENIED]
    assert all(call.result_message for call in AgentRunToolCall.objects.filter(run=run))
    nothing_unread(run)
    check(run)


@pytest.mark.parametrize("command", [inbox.stop, inbox.pause])
def test_a_command_just_before_a_run_waits_is_applied(
    scripted: MakeScripted, command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = decisions.next_action

    def and_then_a_command(view: decisions.View) -> decisions.Next:
        action = decide(view)
        if action is decisions.Next.WAIT_FOR_OUTCOME:
            monkeypatch.setattr(decisions, "next_action", decide)
            command(AgentRun.objects.get().pk, by="ann")
        return action

    monkeypatch.setattr(decisions, "next_action", and_then_a_command)
    run = waiting_for_an_outcome(scripted, monkeypatch)

    assert run.status == (RunStatus.STOPPED if command is inbox.stop else RunStatus.PAUSED)
    nothing_unread(run)
    check(run)


def waiting_for_an_outcome(scripted: MakeScripted, monkeypatch: pytest.MonkeyPatch) -> AgentRun:
    """Return a run whose first call has an unknown outcome and whose second call is planned."""
    from runs.engine.turns import tool_turn
    from runs.tools.base import OutcomeUnknown

    def vanish(*_: Any, **__: Any) -> None:
        raise OutcomeUnknown("nobody knows")

    with monkeypatch.context() as patch:
        patch.setattr(tool_turn, "run_with_deadline", vanish)
        return drive(scripted(calls=[["ledger_once", "ledger_read"]]))
