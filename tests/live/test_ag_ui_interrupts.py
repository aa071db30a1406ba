"""Interrupts: AG-UI clients answer questions, decide about tool calls, and resume."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import httpx
import pytest
from django.db import transaction
from pydantic_ai.messages import ToolCallPart

from agentops.accounts.access import SYSTEM
from runs import chaos
from runs.actions import ag_ui_answers, ag_ui_runs, approvals
from runs.actions.ag_ui_answers import InterruptAnswer
from runs.actions.ag_ui_runs import AgUiRequest, ClientMessage
from runs.engine.results import ShutdownDue
from runs.lifecycle.approval_decisions import Decision
from runs.models import AgentRun, AgentRunToolCall, AgUiRun, Approval
from runs.providers.streaming_provider import AnswerEnd
from tests.support.clients import ASKING, FrontEnd, of, resolved, types
from tests.support.engine import asks
from tests.support.factories import drive, make_awaiting_approval, make_waiting
from tests.support.run_checks import refuses
from timeline import log
from timeline.events.tool import ToolStart
from timeline.log import Entry
from timeline.models import Source

LOOK = ToolCallPart("ledger_read", {"n": 7}, "call-look")


def test_answering_a_question_continues_the_same_run(front_end: Callable[..., FrontEnd]) -> None:
    client = front_end(["Well. ", asks("Which one?", choices=["a", "b"])], ["Thanks."])
    [interrupt] = client.run("Go.")[-1].outcome.interrupts
    assert (interrupt.reason, interrupt.message, interrupt.metadata) == (
        "input_required",
        "Which one?",
        {"choices": ["a", "b"]},
    )

    answer = {"interrupt_id": interrupt.id, "status": "resolved", "payload": "a"}
    events = client.run(None, run_id="run-answer", resume=[answer])
    assert types(events) == [
        *("RUN_STARTED", "TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT"),
        *("TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "RUN_FINISHED"),
    ]
    assert (events[0].run_id, of(events, "TOOL_CALL_RESULT")[0].content) == ("run-answer", "a")
    assert AgentRun.objects.count() == 1

    stale = httpx.post(client.url, json=client.body(None, resume=[answer]), headers=client.headers)
    assert (stale.status_code, stale.json()["code"]) == (409, "interrupt_not_open")


def test_a_message_sent_before_is_not_an_answer(front_end: Callable[..., FrontEnd]) -> None:
    """Clients send the whole conversation: if the agent has produced no text, it still ends with the first message."""
    client = front_end([asks("Which one?")], ["Thanks."])
    first = client.body("Go.")["messages"]
    [interrupt] = client.run(None, messages=first)[-1].outcome.interrupts
    answer = {"interrupt_id": interrupt.id, "status": "resolved", "payload": "the red one"}
    events = client.run(None, messages=first, resume=[answer])
    again = client.run(None, messages=[*first, *client.body("And now?")["messages"]])

    assert of(events, "TOOL_CALL_RESULT")[0].content == "the red one"
    assert of(again, "RUN_STARTED")[0].input.messages[0].content == "And now?"


def test_a_call_is_approved_with_other_arguments(front_end: Callable[..., FrontEnd]) -> None:
    client = front_end([LOOK], ["It is ", "eight."], **ASKING)
    asked = client.run("How many?")
    [interrupt] = asked[-1].outcome.interrupts
    approval = Approval.objects.get()

    assert types(asked) == ["RUN_STARTED", "TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "RUN_FINISHED"]
    assert of(asked, "TOOL_CALL_ARGS")[0].delta == '{"n":7}'
    assert (interrupt.reason, interrupt.tool_call_id) == ("tool_call", of(asked, "TOOL_CALL_START")[0].tool_call_id)
    assert interrupt.message == "Approve the call of ledger_read? It reads."
    assert "editedArgs" in interrupt.response_schema["properties"]
    assert datetime.fromisoformat(interrupt.expires_at) == approval.expires_at

    events = client.run(None, resume=resolved(interrupt, {"approved": True, "editedArgs": {"n": 8}}))
    assert types(events)[:3] == ["RUN_STARTED", "TOOL_CALL_RESULT", "TEXT_MESSAGE_START"]
    assert (of(events, "TOOL_CALL_RESULT")[0].content, events[-1].outcome.type) == ("did 8", "success")
    assert AgentRun.objects.count() == 1
    approval.refresh_from_db()
    assert (approval.state, approval.decided_by[:4]) == ("approved", "key:")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"status": "resolved", "payload": {"approved": False, "message": "Not today."}}, "Not today."),
        ({"status": "resolved", "payload": False}, "not run"),
        ({"status": "cancelled"}, "not run"),
    ],
)
def test_a_call_is_denied(front_end: Callable[..., FrontEnd], answer: dict[str, Any], text: str) -> None:
    client = front_end([LOOK], ["I see."], **ASKING)
    [interrupt] = client.run("How many?")[-1].outcome.interrupts
    events = client.run(None, resume=[{"interrupt_id": interrupt.id, **answer}])

    [result] = of(events, "TOOL_CALL_RESULT")
    assert (text in result.content, result.metadata["status"]) == (True, "denied")
    assert of(events, "TOOL_CALL_START") == []


@pytest.mark.parametrize("payload", ["yes", None, {"approved": "true"}, {"approved": True, "editedArgs": "n"}, {}])
def test_an_invalid_decision_is_refused(front_end: Callable[..., FrontEnd], payload: Any) -> None:
    client = front_end([LOOK], ["Never."], **ASKING)
    [interrupt] = client.run("How many?")[-1].outcome.interrupts
    answers = [client.body(None, resume=resolved(interrupt, payload)), client.body("Go on.")]
    refused, busy = (httpx.post(client.url, json=body, headers=client.headers) for body in answers)

    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input")
    assert refused.json()["errors"][0]["pointer"].startswith("/resume/0/payload")
    assert (busy.status_code, busy.json()["code"]) == (409, "decision_required")
    assert Approval.objects.get().state == "pending"


def test_an_interrupt_settled_elsewhere_can_be_cancelled(
    front_end: Callable[..., FrontEnd],
) -> None:
    client = front_end([LOOK], ["It is seven."], **ASKING)
    [interrupt] = client.run("How many?")[-1].outcome.interrupts
    approval = Approval.objects.get()
    approvals.decide(SYSTEM, approval.run, approval.call_id, Decision(approves=True))
    lost = httpx.post(client.url, json=client.body(None, resume=resolved(interrupt, False)), headers=client.headers)
    events = client.run(None, resume=[{"interrupt_id": interrupt.id, "status": "cancelled"}])

    assert (lost.status_code, lost.json()["code"]) == (409, "interrupt_not_open")
    assert (of(events, "TOOL_CALL_RESULT")[0].content, events[-1].outcome.type) == ("did 7", "success")
    cancelled = {"interrupt_id": interrupt.id, "status": "cancelled"}
    assert client.run("And now?", resume=[cancelled])[0].input.messages[0].content == "And now?"
    foreign = client.body(None, resume=[cancelled | {"interrupt_id": "x.1"}])
    assert httpx.post(client.url, json=foreign, headers=client.headers).status_code == 409


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("no_hints")
def test_a_decision_after_another_users_decision_is_a_conflict() -> None:
    """Another user may decide between the read of the run and the decision."""
    run = make_awaiting_approval()
    call_id = Approval.objects.get().call_id
    approvals.decide(SYSTEM, AgentRun.objects.get(pk=run.pk), call_id, Decision(approves=True))

    with refuses("interrupt_not_open"):
        ag_ui_answers.decide(SYSTEM, run, InterruptAnswer("x", is_cancelled=False, payload=True))


def test_an_unknown_interrupt_is_refused(front_end: Callable[..., FrontEnd]) -> None:
    client = front_end(["Well."])
    client.run("Go.")
    run = AgentRun.objects.get()

    for seq in ("9999", "9" * 30):
        never = {"interrupt_id": f"{run.pk}.{seq}", "status": "cancelled"}
        assert client.refused(client.body(None, resume=[never])) == (409, "interrupt_not_open")


def test_an_unknown_outcome_is_resolved(front_end: Callable[..., FrontEnd]) -> None:
    client = front_end(["Never."])
    run = make_waiting(client.agent.project)
    client.agent = run.agent  # type: ignore[assignment]
    AgUiRun.objects.create(agent=client.agent, run=run, thread_id=client.thread, client_run_id="run-a", after_seq=0)
    asked = client.send(client.body(None, "run-a"))[0]
    [interrupt] = asked[-1].outcome.interrupts
    assert (interrupt.reason, interrupt.message) == (
        "agentops:unknown_tool",
        "The outcome of Grep is unknown. What happened?",
    )
    assert interrupt.tool_call_id == of(asked, "TOOL_CALL_START")[-1].tool_call_id

    wrong = client.body(None, resume=resolved(interrupt, {"choice": "maybe"}))
    assert httpx.post(client.url, json=wrong, headers=client.headers).status_code == 422
    events = client.run(None, resume=resolved(interrupt, {"choice": "done", "text": "42"}))
    assert of(events, "TOOL_CALL_RESULT")[0].content == "42"


def test_several_unknown_outcomes_are_resolved_one_after_another(front_end: Callable[..., FrontEnd]) -> None:
    """Each has a separate interrupt, in the order of the calls."""
    once = [ToolCallPart("ledger_once", {"n": n}, f"call-{n}") for n in (1, 2)]
    client = front_end(once, ["All known."], tools=["ledger_once"])
    client.agent.settings |= {"on_unknown_tool": "wait"}
    client.agent.save()
    request = AgUiRequest(client.thread, "run-a", [ClientMessage("m", "Go.")])
    run = ag_ui_runs.start(SYSTEM, client.agent.project, client.agent, request).run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chaos, "point", leave_in_tool)
        client.worker.drive(run.pk)
    drive(run, client.worker)
    # A worker that ran both calls at once loses the second one too.
    first, second = AgentRunToolCall.objects.filter(run=run).order_by("id")
    AgentRunToolCall.objects.filter(pk=second.pk).update(
        status="unknown", starts=1, started_at=first.started_at, finished_at=first.finished_at
    )
    start = Entry(ToolStart(call_id=second.call_id, tool_name=second.tool_name), step=1, ref_id=second.pk)
    with transaction.atomic():
        log.append(run.pk, [start], source=Source.WEB)

    [one] = client.send(client.body(None, "run-a"))[0][-1].outcome.interrupts
    [other] = client.run(None, resume=resolved(one, {"choice": "done", "text": "41"}))[-1].outcome.interrupts
    events = client.run(None, resume=resolved(other, {"choice": "done", "text": "42"}))

    assert [each.tool_call_id for each in (one, other)] == [str(first.pk), str(second.pk)]
    assert of(events, "TOOL_CALL_RESULT")[0].content == "42"
    assert (events[-1].outcome.type, events[-1].result) == ("success", "All known.")


def leave_in_tool(point: str) -> None:
    if point == "tool.marked_running":
        raise ShutdownDue


def test_a_pause_interrupts_and_is_resumed_or_cancelled(front_end: Callable[..., FrontEnd]) -> None:
    client = front_end(["Step. ", LOOK], ["Step. ", LOOK], ["Never."], max_steps=1)
    [interrupt] = client.run("Go.")[-1].outcome.interrupts
    assert interrupt.reason == "agentops:max_steps"

    resumed = client.run(None, resume=[{"interrupt_id": interrupt.id, "status": "resolved"}])
    [again] = resumed[-1].outcome.interrupts
    first, second = AgentRun.objects.order_by("pk")
    assert (second.resumed_from_id, again.id.partition(".")[0]) == (first.pk, str(second.pk))

    cancelled = client.run(None, resume=[{"interrupt_id": again.id, "status": "cancelled"}])
    assert (types(cancelled), cancelled[-1].outcome.type) == (["RUN_STARTED", "RUN_FINISHED"], "cancelled")
    assert AgentRun.objects.get(pk=second.pk).status == "stopped"


@pytest.mark.parametrize(("end", "reason"), [("max_tokens", "answer_cut"), ("refusal", "answer_refused")])
def test_an_answer_that_is_not_whole_interrupts(front_end: Callable[..., FrontEnd], end: str, reason: str) -> None:
    client = front_end(["Half", AnswerEnd(end)], [" whole."])
    [interrupt] = client.run("Go.")[-1].outcome.interrupts
    assert interrupt.reason == f"agentops:{reason}"

    events = client.run(None, resume=[{"interrupt_id": interrupt.id, "status": "resolved"}])

    assert (events[-1].outcome.type, events[-1].result) == ("success", " whole.")


def test_a_thread_whose_question_was_cancelled_keeps_its_conversation(front_end: Callable[..., FrontEnd]) -> None:
    """The step that asked is unfinished: the thread continues after the previous step."""
    client = front_end(["First. ", LOOK], [asks("Which one?")], ["Never."])
    [interrupt] = client.run("Go.")[-1].outcome.interrupts
    client.run(None, resume=[{"interrupt_id": interrupt.id, "status": "cancelled"}])
    client.run("And now?")

    first, second = AgentRun.objects.order_by("pk")
    assert (first.status, first.step_count) == ("stopped", 2)
    assert (second.forked_from_id, second.forked_at_step) == (first.pk, 1)
    assert [message.role for message in second.messages.order_by("position")][:1] == ["user"]
