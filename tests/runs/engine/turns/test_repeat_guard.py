"""The repeat guard in runs: the fifth identical call in a row warns the model, the tenth stops the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from pydantic_ai.messages import ToolCallPart
from pytest_django import Settings

from runs.actions.resume import resume
from runs.conversation.repeats import STOP_AT, WARN_AT
from runs.models import AgentRun, AgentRunToolCall
from runs.providers.base import ModelCall
from runs.statuses import RunStatus, ToolStatus
from runs.upkeep import replay_check
from runs.worker.worker import Worker
from tests.support.engine import MakeScripted
from tests.support.factories import drive
from tests.support.run_checks import check, events
from tests.support.scripted_model import Move

pytestmark = pytest.mark.django_db(transaction=True)
Words = Callable[[], list[str]]
SAME = {"n": 7}


def stuck(call: ModelCall) -> Iterable[Move]:
    """Make the same call in every step."""
    yield ToolCallPart("ledger_once", SAME, f"call-{call.number}")


def calls_of(run: AgentRun) -> list[AgentRunToolCall]:
    return list(AgentRunToolCall.objects.filter(run__root_run=run.root_run_id).order_by("id"))


def warned(run: AgentRun) -> list[int]:
    """Return the positions, from 1, of the calls whose results carry a warning."""
    told = [str(call.result_message and call.result_message.content["parts"][0]["content"]) for call in calls_of(run)]
    return [place for place, text in enumerate(told, start=1) if "[Warning: this is call" in text]


def verdicts(run: AgentRun) -> list[int | None]:
    """Return the steps of the guard's verdicts."""
    return [e.step for e in events(run) if e.type == "hook.decided" and e.payload["hook"] == "repeat_guard"]


def assert_stopped(run: AgentRun) -> None:
    assert (run.status, run.status_reason, run.step_count) == (RunStatus.STOPPED, "repeated_calls", STOP_AT)
    [stopped] = [event for event in events(run) if event.type == "run.stopped"]
    assert stopped.payload["message"] == (
        "Run stopped: ledger_once was requested 10 times in a row with the same arguments"
    )
    *ran, last = calls_of(run)
    assert {call.status for call in ran} == {ToolStatus.COMPLETED}
    assert (last.status, last.starts) == (ToolStatus.DENIED, 0)
    assert "not run" in str(last.result_message and last.result_message.content)
    assert replay_check.differences(run.pk) == []
    check(run)


def test_the_fifth_call_warns_and_the_tenth_does_not_run(scripted: MakeScripted, effects: Words) -> None:
    """The run stops with a readable reason."""
    run = drive(scripted(stuck))

    assert_stopped(run)
    assert warned(run) == list(range(WARN_AT, STOP_AT))
    assert verdicts(run) == [WARN_AT]
    assert len(effects()) == STOP_AT - 1


def test_the_guard_counts_across_workers(scripted: MakeScripted, worker: Worker, settings: Settings) -> None:
    """Each claim counts from the stored calls."""
    settings.AGENTOPS_SLICE_S = 0.0
    run = drive(scripted(stuck), worker)

    assert run.lease_epoch >= STOP_AT
    assert_stopped(run)
    assert (warned(run), verdicts(run)) == (list(range(WARN_AT, STOP_AT)), [WARN_AT])


def test_the_guard_counts_across_a_resume(scripted: MakeScripted) -> None:
    first = drive(scripted(stuck, max_steps=WARN_AT - 1))
    assert (first.status_reason, verdicts(first)) == ("max_steps", [])

    second = drive(resume(first.pk, by="test", max_steps=50).run)

    assert_stopped(second)
    assert (warned(second), verdicts(second)) == (list(range(WARN_AT, STOP_AT)), [WARN_AT])


def test_a_user_message_resets_the_count(scripted: MakeScripted) -> None:
    first = drive(scripted(stuck, max_steps=WARN_AT - 1))

    second = drive(resume(first.pk, by="test", message="Look again.", max_steps=WARN_AT - 1).run)

    assert (second.status_reason, warned(second)) == ("max_steps", [])


def test_repeated_calls_in_one_answer_are_counted(scripted: MakeScripted, effects: Words) -> None:
    """The calls after the tenth do not run either, and every call has a result."""
    parts = [ToolCallPart("ledger_once", SAME, f"c{n}") for n in range(STOP_AT + 3)]
    run = drive(scripted(lambda _: parts))

    assert (run.status, run.status_reason) == (RunStatus.STOPPED, "repeated_calls")
    assert effects() == [f"c{n}" for n in range(STOP_AT - 1)]
    assert [call.status for call in calls_of(run)][STOP_AT - 1 :] == [ToolStatus.DENIED] * 4
    check(run)


def test_alternating_calls_do_not_trigger_the_guard(scripted: MakeScripted) -> None:
    """Two different calls in turn, thirty times, and the same tool with changing arguments."""

    def play(call: ModelCall) -> Iterable[Move]:
        if call.number <= 30:
            yield ToolCallPart("ledger_read", {"n": call.number % 2}, f"a{call.number}")
            yield ToolCallPart("ledger_read", {"n": call.number}, f"b{call.number}")

    run = drive(scripted(play))

    assert (run.status, run.step_count) == (RunStatus.COMPLETED, 31)
    assert (warned(run), verdicts(run)) == ([], [])
    check(run)


def test_calls_of_a_missing_tool_count(scripted: MakeScripted) -> None:
    run = drive(scripted(lambda call: [ToolCallPart("rm_rf", {}, f"call-{call.number}")]))

    assert (run.status, run.status_reason, run.step_count) == (RunStatus.STOPPED, "repeated_calls", STOP_AT)
    check(run)
