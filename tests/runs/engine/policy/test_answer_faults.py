"""An answer that was cut off or refused does not complete its run: the run pauses, or a policy decides."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ToolCallPart

from agentops.accounts.models import Notification
from runs.actions.fork import fork
from runs.actions.resume import resume
from runs.lifecycle import inbox
from runs.models import AgentRun, AgentRunToolCall, RunCommand
from runs.providers.base import ModelCall
from runs.providers.streaming_provider import AnswerEnd
from runs.worker import sweep
from runs.worker.worker import Worker
from tests.support.engine import (
    TOOLS,
    DieAt,
    MakeHelper,
    MakeScripted,
    applied,
    asks,
    children_of,
    done,
    elsewhere,
    in_order,
    lineage,
    of_type,
    saying,
    spawns,
    task,
    texts,
    with_policies,
    work,
)
from tests.support.factories import drive
from tests.support.scripted_model import Move, Play

pytestmark = pytest.mark.django_db(transaction=True)
Effects = Callable[[], list[str]]
CUT, REFUSED = AnswerEnd("max_tokens"), AnswerEnd("refusal", "It may do harm.")
#: The end of an answer → the policy about it, and the reason of the pause.
FAULTS = {"cut": (CUT, "on_cut", "answer_cut"), "refused": (REFUSED, "on_refused", "answer_refused")}
faults = pytest.mark.parametrize("fault", list(FAULTS))


def noting(requests: list[list[ModelMessage]], *turns: list[Move]) -> Play:
    """Return a play of these answers that appends the history of each call to `requests`."""
    play = saying(*turns)

    def noted(call: ModelCall) -> Any:
        requests.append(list(call.history))
        return play(call)

    return noted


def calls_of(run: AgentRun) -> list[tuple[str, str, int]]:
    rows = AgentRunToolCall.objects.filter(run=run).order_by("step_number", "id")
    return list(rows.values_list("call_id", "status", "starts"))


def state(run: AgentRun) -> tuple[str, str]:
    run.refresh_from_db()
    return run.status, run.status_reason


def continued(run: AgentRun, worker: Worker) -> AgentRun:
    """Let the policy resume a run, and drive the run that continues it."""
    assert state(run)[0] == "waiting"
    assert sweep.resume_due() == 1
    return drive(lineage(run)[-1], worker)


# --- Without a policy ---------------------------------------------------------------------------------------------


@faults
def test_the_run_pauses_and_notifies_its_project(scripted: MakeScripted, worker: Worker, fault: str) -> None:
    end, _, reason = FAULTS[fault]
    run = drive(scripted(saying(["Half", end])), worker)

    assert (run.status, run.status_reason, run.error_type, run.result) == ("paused", reason, reason, "")
    assert applied(run) == []
    assert [event.type for event in of_type(run, "error", "run.paused")] == ["error", "run.paused"]
    [paused] = of_type(run, "run.paused")
    assert paused.payload["reason"] == reason
    note = Notification.objects.get()
    assert (note.run_id, note.kind) == (run.pk, "paused")
    assert "Resume the run" in note.text
    in_order(run)


def test_a_resumed_run_continues_a_cut_answer(scripted: MakeScripted, worker: Worker) -> None:
    requests: list[list[ModelMessage]] = []
    run = drive(scripted(noting(requests, ["The first half", CUT], [", and the rest."])), worker)
    new = drive(resume(run.pk, by="user:oscar").run, worker)

    assert (new.status, new.result, new.step_count) == ("completed", ", and the rest.", 2)
    assert texts(requests[-1])[1:] == ["> Go.", "< The first half", "> continue"]
    assert run.prompt == "Go."
    in_order(new)


def test_a_resumed_run_does_not_send_a_refused_answer(scripted: MakeScripted, worker: Worker) -> None:
    requests: list[list[ModelMessage]] = []
    play = noting(requests, [ToolCallPart("ledger_read", {"n": 1}, "a")], ["Well", REFUSED], ["Fine."])
    run = drive(scripted(play), worker)
    assert run.status_reason == "answer_refused"
    new = drive(resume(run.pk, by="user:oscar", message="Only the weather.").run, worker)

    assert (new.status, new.result) == ("completed", "Fine.")
    assert texts(requests[-1])[-3:] == ["< a", "> did 1", "> Only the weather."]
    in_order(new)


def test_a_resume_without_the_conversation_starts_over(scripted: MakeScripted, worker: Worker) -> None:
    requests: list[list[ModelMessage]] = []
    run = drive(scripted(noting(requests, ["Well", REFUSED], ["Fine."])), worker)
    new = drive(resume(run.pk, by="user:oscar", message="Only the weather.", append=False).run, worker)

    assert new.status == "completed"
    assert texts(requests[-1])[1:] == ["> Only the weather."]
    in_order(new)


@faults
def test_a_waiting_message_continues_the_run(scripted: MakeScripted, worker: Worker, fault: str) -> None:
    """A person has sent it while the model gave the answer."""
    sent = elsewhere(lambda: inbox.send(run.pk, "Be brief.", by="user:oscar"))
    run = scripted(saying(["Half", sent, FAULTS[fault][0]], ["Brief."]))
    run = drive(run, worker)

    assert (run.status, run.result, run.step_count) == ("completed", "Brief.", 2)
    in_order(run)


@pytest.mark.parametrize(("wish", "status"), [("stop", "stopped"), ("pause", "paused")])
@faults
def test_a_command_takes_precedence(scripted: MakeScripted, worker: Worker, fault: str, wish: str, status: str) -> None:
    act = {"stop": inbox.stop, "pause": inbox.pause}[wish]
    end, policy, _ = FAULTS[fault]
    run = scripted(saying(["Half", elsewhere(lambda: act(run.pk, by="user:oscar")), end]))
    run = drive(with_policies(run, **{policy: "resume"}), worker)

    assert (run.status, run.status_reason, applied(run)) == (status, "operator", [])
    in_order(run)


@faults
def test_an_idle_policy_does_not_decide_about_it(scripted: MakeScripted, worker: Worker, fault: str) -> None:
    end, _, reason = FAULTS[fault]
    run = drive(with_policies(scripted(saying(["Half", end]), tools=TOOLS), on_idle="nudge"), worker)

    assert (run.status, run.status_reason, RunCommand.objects.filter(run=run).count()) == ("paused", reason, 0)
    in_order(run)


def test_an_output_schema_is_not_checked(scripted: MakeScripted, worker: Worker) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    run = drive(scripted(saying(['{"city": "Zü', CUT]), output_schema=schema), worker)

    assert (run.status_reason, run.error_type) == ("answer_cut", "answer_cut")
    in_order(run)


@pytest.mark.parametrize("point", ["turn.committed", "checkpoint.before", "checkpoint.committed"])
@faults
def test_the_next_worker_pauses_the_run_after_a_crash(
    scripted: MakeScripted, die_at: DieAt, worker: Worker, fault: str, point: str
) -> None:
    end, _, reason = FAULTS[fault]
    run = scripted(saying(["Half", end]))
    assert die_at(run, point)

    run = drive(run, worker)

    assert (run.status, run.status_reason, run.step_count, run.lease_epoch) == ("paused", reason, 1, 2)
    in_order(run)


# --- Calls --------------------------------------------------------------------------------------------------------


def test_whole_calls_of_a_cut_answer_are_run(scripted: MakeScripted, worker: Worker, effects: Effects) -> None:
    """Then the run pauses, because the model has not requested all that it wanted."""
    whole = [ToolCallPart("ledger_once", {"n": 1}, "a"), ToolCallPart("ledger_read", '{"n": 2}', "b")]
    run = drive(scripted(saying([*whole, CUT])), worker)

    assert (run.status_reason, effects()) == ("answer_cut", ["a", "b"])
    assert calls_of(run) == [("a", "completed", 1), ("b", "completed", 1)]
    in_order(run)


@pytest.mark.parametrize("arguments", ['{"n": 2', "", None, {}, '"text"', "[1]"])
@pytest.mark.parametrize("parallel", [1, 4])
def test_a_call_that_was_cut_off_is_not_run(
    scripted: MakeScripted, worker: Worker, effects: Effects, arguments: Any, parallel: int
) -> None:
    """Not even if its tool would accept no arguments, and not ahead of its turn."""
    calls = [ToolCallPart("ledger_read", {"n": 1}, "a"), ToolCallPart("ledger_read", arguments, "b")]
    run = drive(scripted(saying([*calls, CUT]), parallel_tools=parallel), worker)

    assert (run.status_reason, effects()) == ("answer_cut", ["a"])
    assert calls_of(run) == [("a", "completed", 1), ("b", "error", 0)]
    assert run.error_message.endswith("Not run: ledger_read.")
    in_order(run)


@pytest.mark.parametrize("tool", ["ask_user", "spawn_agents", "ledger_approved", "unknown_tool"])
@faults
def test_no_question_child_or_approval_comes_of_it(
    scripted: MakeScripted, worker: Worker, fault: str, tool: str
) -> None:
    end, _, reason = FAULTS[fault]
    tools = ["ask_user", "spawn_agents", "ledger_approved"]
    run = drive(scripted(saying([ToolCallPart(tool, '{"question": "Wh', "a"), end]), tools=tools), worker)

    assert (run.status, run.status_reason) == ("paused", reason)
    assert calls_of(run) == [("a", "error", 0)]
    assert of_type(run, "approval.requested", "child_run.started", "tool.start") == []
    in_order(run)


def test_no_call_of_a_refused_answer_is_run(scripted: MakeScripted, worker: Worker, effects: Effects) -> None:
    calls = [ToolCallPart("ledger_once", {"n": 1}, "a"), asks(call_id="b"), done()]
    run = drive(scripted(saying([*calls, REFUSED]), tools=TOOLS), worker)

    assert (run.status_reason, effects()) == ("answer_refused", [])
    assert {(status, starts) for _, status, starts in calls_of(run)} == {("error", 0)}
    in_order(run)


def test_a_whole_call_of_done_completes_the_run(scripted: MakeScripted, worker: Worker) -> None:
    run = drive(scripted(saying(["Done. ", done(), CUT]), tools=TOOLS), worker)

    assert (run.status, run.result) == ("completed", "All is done.")
    in_order(run)


@pytest.mark.parametrize("point", ["result.committed", "tool.before_start", "tool.running"])
def test_a_crash_does_not_run_the_cut_call(
    scripted: MakeScripted, die_at: DieAt, worker: Worker, effects: Effects, point: str
) -> None:
    calls = [ToolCallPart("ledger_read", {"n": 1}, "a"), ToolCallPart("ledger_once", '{"n": 2', "b")]
    run = scripted(saying([*calls, CUT]))
    assert die_at(run, point)

    run = drive(run, worker)

    assert (run.status_reason, set(effects())) == ("answer_cut", {"a"})
    assert calls_of(run)[1] == ("b", "error", 0)
    in_order(run)


# --- Policies -----------------------------------------------------------------------------------------------------


@faults
def test_attempts_count_in_a_row(scripted: MakeScripted, worker: Worker, fault: str) -> None:
    """A whole answer in between resets them; after the last attempt the run is escalated."""
    end, policy, _ = FAULTS[fault]
    whole: list[Move] = [ToolCallPart("ledger_read", {"n": 1}, "a")]
    play = saying(["1", end], ["2", end], whole, ["4", end], ["5", end], ["6", end])
    run = with_policies(scripted(play), **{policy: {"action": "resume", "attempts": 2}})
    run = drive(run, worker)
    for _ in range(4):
        run = continued(run, worker)

    assert state(run) == ("paused", "escalated")
    acts = [act for each in lineage(run) for act in applied(each)]
    assert [(act["action"], act.get("attempt"), act.get("exhausted")) for act in acts] == [
        ("resume", 1, None),
        ("resume", 2, None),
        ("resume", 1, None),
        ("resume", 2, None),
        ("escalate", None, True),
    ]
    assert {each.status_reason for each in lineage(run)[:-1]} == {policy}
    in_order(run)


def test_both_policies_in_turn_do_not_reset_each_other(scripted: MakeScripted, worker: Worker) -> None:
    run = scripted(saying(["1", CUT], ["2", REFUSED], ["3", CUT], ["4", REFUSED]))
    run = drive(with_policies(run, on_cut="resume", on_refused="resume"), worker)
    for _ in range(2):
        run = continued(run, worker)

    assert state(run) == ("paused", "escalated")
    assert [applied(each)[0]["action"] for each in lineage(run)] == ["resume", "resume", "escalate"]
    in_order(run)


def test_the_message_of_a_resume_is_sent(scripted: MakeScripted, worker: Worker) -> None:
    requests: list[list[ModelMessage]] = []
    run = scripted(noting(requests, ["Half", CUT], [" whole."]))
    run = drive(with_policies(run, on_cut={"action": "resume", "message": "Continue where you stopped."}), worker)
    new = continued(run, worker)

    assert (new.status, state(run)) == ("completed", ("resumed", "on_cut"))
    assert texts(requests[-1])[-2:] == ["< Half", "> Continue where you stopped."]
    reasons = [event.payload["reason"] for event in of_type(run, "run.waiting", "run.paused", "run.resumed")]
    assert reasons == ["on_cut", "answer_cut", "on_cut"]
    in_order(new)


@faults
def test_an_accepted_answer_is_the_result(scripted: MakeScripted, worker: Worker, fault: str) -> None:
    end, policy, _ = FAULTS[fault]
    run = drive(with_policies(scripted(saying(["Half an answer", end])), **{policy: "accept"}), worker)

    assert (run.status, run.result, run.error_type) == ("completed", "Half an answer", "")
    assert [act["action"] for act in applied(run)] == ["accept"]
    assert not run.errors.exists()
    in_order(run)


def test_a_run_continues_after_the_calls_of_an_accepted_answer(
    scripted: MakeScripted, worker: Worker, effects: Effects
) -> None:
    """The model learns which call was not run. Each such answer is accepted once."""
    calls = [ToolCallPart("ledger_read", {"n": 1}, "a"), ToolCallPart("ledger_once", '{"n": 2', "b")]
    again = [ToolCallPart("ledger_once", '{"n": 3', "c"), CUT]
    requests: list[list[ModelMessage]] = []
    run = scripted(noting(requests, [*calls, CUT], again, ["Well."]))
    run = drive(with_policies(run, on_cut="accept"), worker)

    assert (run.status, run.result, effects()) == ("completed", "Well.", ["a"])
    assert [event.step for event in of_type(run, "policy.applied")] == [1, 2]
    assert "before the arguments of this call were complete" in texts(requests[-1])[-1]
    in_order(run)


@pytest.mark.parametrize("point", ["model.before_start", "model.before_call", "model.answered"])
def test_a_crash_after_the_acceptance_does_not_repeat_it(
    scripted: MakeScripted, die_at: DieAt, worker: Worker, point: str
) -> None:
    run = scripted(saying([ToolCallPart("ledger_once", '{"n": 2', "b"), CUT], ["Well."]))
    with_policies(run, on_cut="accept")
    assert die_at(run, point, hit=2)

    run = drive(run, worker)

    assert (run.status, len(applied(run))) == ("completed", 1)
    in_order(run)


def test_a_refused_answer_with_calls_is_accepted_as_the_end(scripted: MakeScripted, worker: Worker) -> None:
    run = scripted(saying(["No.", ToolCallPart("ledger_once", {"n": 1}, "a"), REFUSED]))
    run = drive(with_policies(run, on_refused="accept"), worker)

    assert (run.status, run.result, calls_of(run)) == ("completed", "No.", [("a", "error", 0)])
    in_order(run)


# --- Other runs ---------------------------------------------------------------------------------------------------


@faults
def test_the_pause_of_a_child_is_a_result_of_its_parent(
    scripted: MakeScripted, helper: MakeHelper, worker: Worker, fault: str
) -> None:
    end, _, reason = FAULTS[fault]
    run = scripted(saying([spawns(task("helper"))], ["I see."]), tools=["spawn_agents"])
    helper(run, "helper", ["Half", end])
    work(worker)

    assert state(run) == ("completed", "")
    [child] = children_of(run)
    assert state(child) == ("paused", reason)
    [result] = json.loads(AgentRunToolCall.objects.get(run=run).output)
    assert (result["status"], result["reason"], result["detail"]) == ("paused", reason, child.error_message)
    in_order(run)


def test_a_fork_continues_after_a_cut_answer(scripted: MakeScripted, worker: Worker) -> None:
    requests: list[list[ModelMessage]] = []
    run = drive(scripted(noting(requests, ["Half", CUT], [" whole."])), worker)
    forked = drive(fork(run.pk, by="user:oscar", step=1, agent={"settings": run.agent_config["settings"]}), worker)

    assert (forked.status, forked.result) == ("completed", " whole.")
    assert texts(requests[-1])[-2:] == ["< Half", "> continue"]
    in_order(forked)
