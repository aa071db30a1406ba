"""Questions and completion: `ask_user` and `done`, the two tool calls that no worker runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from pydantic_ai.messages import ToolCallPart

from agentops.accounts.models import Notification
from runs.actions.resume import resume
from runs.lifecycle import inbox, questions
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, RunCommand
from runs.statuses import RunStatus, ToolStatus
from runs.worker.in_process import advance_ready
from runs.worker.worker import Worker
from tests.support.api import program
from tests.support.engine import (
    TOOLS,
    DieAt,
    MakeScripted,
    applied,
    asks,
    asks_something,
    closing,
    done,
    elsewhere,
    in_order,
    lineage,
    of_type,
    saying,
    with_policies,
)
from tests.support.factories import drive
from tests.support.run_checks import refuses

pytestmark = pytest.mark.django_db(transaction=True)


def calls_of(run: AgentRun) -> list[AgentRunToolCall]:
    found = AgentRunToolCall.objects.filter(run=run).select_related("result_message")
    return list(found.order_by("step_number", "id"))


def results_of(run: AgentRun) -> list[Any]:
    rows = AgentRunMessage.objects.filter(run=run, role="tool_result").order_by("position")
    return [row.content["parts"][0]["content"] for row in rows]


def users_of(run: AgentRun) -> list[Any]:
    rows = AgentRunMessage.objects.filter(run=run, role="user").order_by("position")
    return [row.content["parts"][0]["content"] for row in rows]


@pytest.fixture
def asking(scripted: MakeScripted, worker: Worker) -> AgentRun:
    """Return a run that waits for an answer, with another planned call after the question."""
    look = ToolCallPart("ledger_read", {"n": 1}, "call-look")
    run = scripted(saying(["Well. ", asks("Which one?", choices=["a", "b"]), look], ["Thanks."]), tools=TOOLS)
    return drive(run, worker)


# --- A question ---------------------------------------------------------------------------------------------------


def test_a_run_with_a_question_waits_without_a_worker(asking: AgentRun, worker: Worker) -> None:
    assert (asking.status, asking.status_reason, asking.lease_owner) == (RunStatus.WAITING, "input", None)
    question = questions.open_question(asking)
    assert question is not None
    assert (question.text, question.choices) == ("Which one?", ["a", "b"])
    told = of_type(asking, "run.waiting")[-1]
    assert (told.ref_id, told.payload) == (
        question.call.pk,
        {"reason": "input", "question": "Which one?", "choices": ["a", "b"]},
    )
    assert [call.status for call in calls_of(asking)] == [ToolStatus.PLANNED] * 2
    assert advance_ready(worker) == 0
    in_order(asking)


@pytest.mark.parametrize("say", [inbox.reply, inbox.send], ids=["reply", "send"])
def test_the_answer_becomes_the_result_of_the_call(asking: AgentRun, worker: Worker, say: Any) -> None:
    posted = say(asking.pk, "The second one.", by="user:oscar", key="k1")
    assert (posted.status_before, posted.run.status) == (RunStatus.WAITING, RunStatus.QUEUED)
    in_order(asking)
    # Repeating the command with the same key has no effect.
    assert not say(asking.pk, "The second one.", by="user:oscar", key="k1").is_new

    run = drive(asking, worker)

    assert (run.status, run.result) == (RunStatus.COMPLETED, "Thanks.")
    first, second = calls_of(run)
    assert (first.status, first.starts, first.attempts, first.output) == ("completed", 1, 1, "The second one.")
    assert second.status == ToolStatus.COMPLETED
    assert results_of(run) == ["The second one.", "did 1"]
    assert users_of(run) == ["Go."]
    assert lineage(run) == [run]
    assert questions.open_question(run) is None
    in_order(run)


@pytest.mark.parametrize("kind", ["reply", "send"])
def test_the_api_accepts_an_answer(asking: AgentRun, worker: Worker, kind: str) -> None:
    body = {"type": kind, "message": "The blue one.", "key": "k1"}
    door = program(asking.project, "write", "read")

    first, again = (door.post(f"/{asking.pk}/commands", body) for _ in range(2))

    assert (first.status_code, again.status_code) == (202, 200)
    assert door.get(f"/{asking.pk}").json()["status"] == "queued"
    assert results_of(drive(asking, worker))[0] == "The blue one."
    in_order(asking)


def test_the_command_line_accepts_an_answer(asking: AgentRun, worker: Worker) -> None:
    call_command("agent", "send", str(asking.pk), "The blue one.", "--json", stdout=StringIO())

    assert results_of(drive(asking, worker))[0] == "The blue one."
    in_order(asking)


def test_a_long_answer_is_not_truncated(asking: AgentRun, worker: Worker) -> None:
    inbox.reply(asking.pk, "x" * 150_000, by="user:oscar")

    assert results_of(drive(asking, worker))[0] == "x" * 150_000


def test_the_first_of_two_answers_counts(asking: AgentRun, worker: Worker) -> None:
    """The second becomes a message to the continued run."""
    inbox.reply(asking.pk, "This one.", by="user:oscar")
    inbox.reply(asking.pk, "That one.", by="user:bob")

    run = drive(asking, worker)

    assert results_of(run)[0] == "This one."
    assert users_of(run) == ["Go.", "That one."]
    in_order(run)


@pytest.mark.parametrize("attempt", range(3))
def test_only_one_answer_counts_when_many_arrive_at_once(asking: AgentRun, worker: Worker, attempt: int) -> None:
    with ThreadPoolExecutor(4) as pool:
        said = [
            pool.submit(closing, lambda n=n: inbox.reply(asking.pk, f"Answer {n}.", by=f"user:{n}"))  # type: ignore[misc]
            for n in range(4)
        ]
        for each in said:
            each.result(30)

    run = drive(asking, worker)

    assert run.status == RunStatus.COMPLETED
    assert sorted([results_of(run)[0], *users_of(run)[1:]]) == [f"Answer {n}." for n in range(4)]
    in_order(run)


def test_a_reply_posted_before_the_question_is_kept_for_it(scripted: MakeScripted, worker: Worker) -> None:
    """A reply that arrives during the model call answers the question of that call."""
    early = elsewhere(lambda: inbox.reply(run.pk, "The blue one.", by="user:oscar"))
    run = scripted(saying([asks(), early], ["Thanks."]), tools=TOOLS)

    run = drive(run, worker)

    assert (run.status, results_of(run), users_of(run)) == (RunStatus.COMPLETED, ["The blue one."], ["Go."])
    assert [event.payload["reason"] for event in of_type(run, "run.waiting")] == ["input"]
    in_order(run)


def test_a_message_posted_before_the_question_is_delivered_after_the_answer(
    scripted: MakeScripted, worker: Worker
) -> None:
    """A message is not a reply: the run still waits, and the model gets the message later."""
    early = elsewhere(lambda: inbox.send(run.pk, "And be brief.", by="user:oscar"))
    run = scripted(saying([asks(), early], ["Thanks."]), tools=TOOLS)
    assert drive(run, worker).status == RunStatus.WAITING

    inbox.reply(run.pk, "The red one.", by="user:oscar")
    run = drive(run, worker)

    assert (run.status, results_of(run)) == (RunStatus.COMPLETED, ["The red one."])
    assert users_of(run) == ["Go.", "And be brief."]
    in_order(run)


def test_several_questions_are_put_one_at_a_time(scripted: MakeScripted, worker: Worker) -> None:
    run = scripted(saying([asks("First?", "q1"), asks("Second?", "q2")], ["Thanks."]), tools=TOOLS)
    for number, text in enumerate(["First?", "Second?"]):
        run = drive(run, worker)
        question = questions.open_question(run)
        assert question is not None
        assert (run.status, question.text) == (RunStatus.WAITING, text)
        inbox.reply(run.pk, f"answer {number}", by="user:oscar")

    run = drive(run, worker)

    assert (run.status, results_of(run)) == (RunStatus.COMPLETED, ["answer 0", "answer 1"])
    in_order(run)


def test_an_empty_question_is_an_error(scripted: MakeScripted, worker: Worker) -> None:
    run = drive(scripted(saying([asks("  ")], ["Sorry."]), tools=TOOLS), worker)

    assert (run.status, calls_of(run)[0].status) == (RunStatus.COMPLETED, ToolStatus.ERROR)
    assert "Nothing was run" in results_of(run)[0]
    in_order(run)


def test_a_secret_in_a_question_is_redacted(scripted: MakeScripted, worker: Worker) -> None:
    secret = "ghp_" + "a1B2" * 9
    run = drive(scripted(saying([asks(f"Is {secret} right?")]), tools=TOOLS), worker)

    question = questions.open_question(run)
    assert question is not None
    assert secret not in question.text
    assert secret not in str(of_type(run, "run.waiting")[-1].payload)
    in_order(run)


@pytest.mark.parametrize(("wish", "status"), [("pause", RunStatus.PAUSED), ("stop", RunStatus.STOPPED)])
def test_a_pause_or_stop_ends_the_wait(asking: AgentRun, wish: str, status: RunStatus) -> None:
    {"pause": inbox.pause, "stop": inbox.stop}[wish](asking.pk, by="user:oscar")

    asking.refresh_from_db()
    assert asking.status == status
    assert [call.status for call in calls_of(asking)] == [ToolStatus.DENIED] * 2
    in_order(asking)


def test_a_waiting_run_can_be_resumed_without_an_answer(asking: AgentRun, worker: Worker) -> None:
    new = drive(resume(asking.pk, by="user:oscar", message="Take any.", kill=True).run, worker)

    assert (new.status, users_of(new)) == (RunStatus.COMPLETED, ["Take any."])
    in_order(new)


def test_a_reply_after_the_end_is_refused(asking: AgentRun, worker: Worker) -> None:
    inbox.stop(asking.pk, by="user:oscar")

    with refuses("run_terminal"):
        inbox.reply(asking.pk, "Too late.", by="user:oscar")
    in_order(asking)


@pytest.mark.parametrize("wish", ["pause", "stop"])
def test_a_pause_or_stop_posted_with_the_question_takes_precedence(
    scripted: MakeScripted, worker: Worker, wish: str
) -> None:
    act = {"pause": inbox.pause, "stop": inbox.stop}[wish]
    early = elsewhere(lambda: act(run.pk, by="user:oscar"))
    run = scripted(saying([asks(), early], ["Thanks."]), tools=TOOLS)

    run = drive(run, worker)

    assert run.status == {"pause": RunStatus.PAUSED, "stop": RunStatus.STOPPED}[wish]
    assert of_type(run, "run.waiting") == []
    in_order(run)


@pytest.mark.parametrize("point", ["turn.committed", "hooks.before", "command.in_transaction"])
def test_a_crash_around_the_question_does_not_repeat_it(
    scripted: MakeScripted, die_at: DieAt, worker: Worker, point: str
) -> None:
    look = ToolCallPart("ledger_read", {"n": 1}, "call-look")
    run = scripted(saying([look, asks()], ["Thanks."]), tools=TOOLS)
    die_at(run, point)

    run = drive(run, worker)

    assert (run.status, len(of_type(run, "run.waiting"))) == (RunStatus.WAITING, 1)
    inbox.reply(run.pk, "Yes.", by="user:oscar")
    assert drive(run, worker).status == RunStatus.COMPLETED
    in_order(run)


def test_an_escalated_question_can_still_be_answered(scripted: MakeScripted, die_at: DieAt, worker: Worker) -> None:
    run = asks_something(scripted, die_at, worker, "escalate")
    assert "Which one?" in Notification.objects.get().text

    inbox.reply(run.pk, "The blue one.", by="user:oscar")
    run = drive(run, worker)

    assert (run.status, run.result, len(applied(run))) == (RunStatus.COMPLETED, "Thanks.", 1)
    in_order(run)


@pytest.mark.parametrize("policy", ["done", "fail", "escalate", {"action": "gate", "run": "true"}])
def test_a_message_from_a_person_takes_precedence_over_a_policy(
    scripted: MakeScripted, worker: Worker, settings: Any, policy: Any
) -> None:
    settings.AGENTOPS_GATE_COMMANDS = ["true"]
    early = elsewhere(lambda: inbox.send(run.pk, "Wait for me.", by="user:oscar"))
    run = with_policies(scripted(saying([asks(), early], ["Thanks."]), tools=TOOLS), on_prompt=policy)

    run = drive(run, worker)

    assert (run.status, run.status_reason, applied(run)) == (RunStatus.WAITING, "input", [])
    assert RunCommand.objects.get(run=run).applied_at is None
    in_order(run)


def test_an_agent_without_the_tool_cannot_ask(scripted: MakeScripted, worker: Worker) -> None:
    run = drive(scripted(saying([asks()], ["Well."])), worker)

    names = "ledger_read, ledger_idempotent, ledger_once"
    answer = f"There is no tool named 'ask_user'. There are: {names}."
    assert (run.status, results_of(run)) == (RunStatus.COMPLETED, [answer])
    in_order(run)


# --- Done ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policies", [{}, {"on_idle": "nudge"}], ids=["without", "with"])
def test_calling_done_completes_the_run(scripted: MakeScripted, worker: Worker, policies: Any) -> None:
    run = with_policies(scripted(saying(["So. ", done("It is 42.")], ["Never."]), tools=TOOLS), **policies)

    run = drive(run, worker)

    assert (run.status, run.result, run.step_count) == (RunStatus.COMPLETED, "It is 42.", 1)
    assert applied(run) == []
    in_order(run)


def test_the_other_calls_of_the_turn_run_before_done(scripted: MakeScripted, worker: Worker, effects: Any) -> None:
    look, write = ToolCallPart("ledger_read", {"n": 1}, "look"), ToolCallPart("ledger_once", {"n": 2}, "write")
    run = drive(scripted(saying([look, done(), write], ["Never."]), tools=TOOLS), worker)

    assert (run.status, run.result, effects()) == (RunStatus.COMPLETED, "All is done.", ["look", "write"])
    in_order(run)


def test_a_long_result_is_not_truncated(scripted: MakeScripted, worker: Worker) -> None:
    run = scripted(saying([done("x" * 30_000)]), tools=TOOLS, tool_output_limit=100)

    assert drive(run, worker).result == "x" * 30_000
    in_order(run)


def test_done_without_a_result_does_not_complete_the_run(scripted: MakeScripted, worker: Worker) -> None:
    run = scripted(saying([ToolCallPart("done", {}, "d1")], [done("Now.")]), tools=TOOLS)
    run = drive(with_policies(run, on_idle="nudge"), worker)

    assert (run.status, run.result, run.step_count) == (RunStatus.COMPLETED, "Now.", 2)
    in_order(run)


def test_a_message_takes_precedence_over_done(scripted: MakeScripted, worker: Worker) -> None:
    """A message that arrives during the model call is delivered before the run completes."""
    more = elsewhere(lambda: inbox.send(run.pk, "One thing more.", by="user:oscar"))
    run = scripted(saying([done("Early."), more], [done("Late.")]), tools=TOOLS)

    run = drive(run, worker)

    assert (run.status, run.result, users_of(run)) == (RunStatus.COMPLETED, "Late.", ["Go.", "One thing more."])
    in_order(run)


@pytest.mark.parametrize(
    "point",
    [
        "turn.committed",
        "tool.marked_running",
        "tool.returned",
        "result.committed",
        "checkpoint.before",
        "end.before",
        "end.in_transaction",
    ],
)
def test_a_crash_around_done_completes_the_run_once(
    scripted: MakeScripted, die_at: DieAt, worker: Worker, point: str
) -> None:
    run = with_policies(scripted(saying([done("It is 42.")], ["Never."]), tools=TOOLS), on_idle="fail")
    assert die_at(run, point)

    run = drive(run, worker)

    assert (run.status, run.result, run.step_count) == (RunStatus.COMPLETED, "It is 42.", 1)
    in_order(run)
