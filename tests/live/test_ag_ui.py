"""AG-UI clients start, continue and follow runs; each event is one of the protocol's own Python package."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import httpx
import pytest
from ag_ui.core import Event, RunAgentInput
from django.db import transaction
from pydantic import TypeAdapter
from pydantic_ai.messages import ThinkingPart, ToolCallPart

from agentops.projects.access import SYSTEM
from runs.actions import ag_ui_runs, approvals
from runs.actions.ag_ui_runs import AgUiRequest, ClientMessage
from runs.lifecycle import transitions
from runs.lifecycle.approval_decisions import Decision
from runs.models import Agent, AgentRun, AgUiRun, Approval
from runs.queries.ag_ui_dialect import ag_ui_texts
from runs.statuses import RunStatus
from runs.worker.worker import Worker
from tests.support.accounts import with_key
from tests.support.engine.policy_occasions import asks, saying
from tests.support.factories import drive, make_agent, make_project, make_waiting
from tests.support.processes.scripted_model import PLAYS, Move
from tests.support.web.server import WebThread
from timeline import log
from timeline.events.run import RunFailed
from timeline.models import Source

EVENTS: TypeAdapter[Any] = TypeAdapter(Event)
_numbers = itertools.count(1)
#: Of events that say what happened to the run, not in it.
STATE = "STATE_SNAPSHOT"


@dataclass
class FrontEnd:
    """A client of one thread."""

    web: WebThread
    agent: Agent
    worker: Worker
    headers: dict[str, str]
    thread: str = field(default_factory=lambda: f"thread-{next(_numbers)}")

    @property
    def url(self) -> str:
        return f"{self.web.url}/api/projects/{self.agent.project.slug}/agents/{self.agent.slug}/ag-ui"

    def body(self, text: str | None, run_id: str | None = None, **more: Any) -> dict[str, Any]:
        number = next(_numbers)
        messages = [] if text is None else [{"id": f"m{number}", "role": "user", "content": text}]
        asked = RunAgentInput(
            **{"thread_id": self.thread, "run_id": run_id or f"run-{number}", "messages": messages} | more
        )
        return asked.model_dump(mode="json", by_alias=True)

    def send(self, body: dict[str, Any], **headers: str) -> tuple[list[Any], list[str]]:
        """The events of the stream, each as the protocol's package reads it, and the IDs in it."""
        with httpx.stream("POST", self.url, json=body, headers=self.headers | headers, timeout=20) as answer:
            assert answer.status_code == 200, answer.read()
            lines = list(answer.iter_lines())
        sent = [EVENTS.validate_json(line[6:]) for line in lines if line.startswith("data: ")]
        assert all(not event.model_extra for event in sent), "a field that the protocol does not have"
        return sent, [line[4:] for line in lines if line.startswith("id: ")]

    def run(self, text: str | None, **more: Any) -> list[Any]:
        """Send a request, and have its run driven meanwhile."""
        body = self.body(text, **more)
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(self.send, body)
            while not sent.done():
                for run in AgentRun.objects.filter(agent=self.agent, status="queued"):
                    drive(run, self.worker)
            return sent.result()[0]


def of(events: list[Any], name: str) -> list[Any]:
    return [event for event in events if event.type.value == name]


def types(events: list[Any], *, without: tuple[str, ...] = (STATE, "CUSTOM")) -> list[str]:
    return [name for event in events if (name := event.type.value) not in without]


@pytest.fixture
def plays() -> Iterator[Callable[..., str]]:
    mine: list[str] = []

    def add(*turns: list[Move]) -> str:
        mine.append(f"ag-ui-{next(_numbers)}")
        PLAYS[mine[-1]] = saying(*turns)
        return mine[-1]

    yield add
    for name in mine:
        del PLAYS[name]


@pytest.fixture
def front_end(web: WebThread, worker: Worker, plays: Callable[..., str], tmp_path: Any) -> Callable[..., FrontEnd]:
    def make(*turns: list[Move], **fields: Any) -> FrontEnd:
        project = make_project()
        settings = {"play": plays(*turns), "ledger": str(tmp_path / "ledger")}
        agent = make_agent(
            project, provider="scripted", model="scripted-model", settings=settings,
            **{"tools": ["ledger_read", "ask_user"], "max_steps": 50} | fields,
        )  # fmt: skip
        return FrontEnd(web, agent, worker, with_key(project, "read", "write"))

    return make


LOOK = ToolCallPart("ledger_read", {"n": 7}, "call-look")
TALK = [[ThinkingPart("Hm."), "Let me ", "look. ", LOOK], ["It is ", "seven."]]


@pytest.mark.every_database
def test_a_run_is_streamed_whole(front_end: Callable[..., FrontEnd]) -> None:
    client = front_end(*TALK)
    events = client.run("How many?", run_id="run-a", context=[{"description": "page", "value": "the stock"}])

    assert types(events) == [
        "RUN_STARTED",
        *("REASONING_START", "REASONING_MESSAGE_START", "REASONING_MESSAGE_CONTENT", "REASONING_MESSAGE_END"),
        *("REASONING_END", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"),
        *("TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT"),
        *("TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "RUN_FINISHED"),
    ]
    started, finished, run = events[0], events[-1], AgentRun.objects.get()
    assert (started.thread_id, started.run_id, started.protocol_version) == (client.thread, "run-a", "1.0")
    assert started.input.messages[0].content == "How many?\n\nContext:\n- page: the stock"
    assert [event.delta for event in of(events, "TEXT_MESSAGE_CONTENT")] == ["Let me look. ", "It is seven."]
    assert [event.delta for event in of(events, "TOOL_CALL_ARGS")] == ['{"n":7}']
    assert [(event.content, event.metadata["status"]) for event in of(events, "TOOL_CALL_RESULT")] == [
        ("did 7", "completed")
    ]
    assert [event.snapshot["status"] for event in of(events, STATE)] == ["queued", "running", "completed"]
    assert (finished.outcome.type, finished.result, finished.usage[0].input_tokens) == ("success", run.result, 200)
    assert {event.name for event in of(events, "CUSTOM")} >= {"llm.turn.start", "llm.turn.end"}


def test_a_thread_goes_on_with_its_whole_conversation(front_end: Callable[..., FrontEnd]) -> None:
    client = front_end(["One."], ["Two."])
    client.run("First.")
    events = client.run("Second.")

    first, second = AgentRun.objects.order_by("pk")
    assert second.forked_from_id == first.pk
    assert of(events, "RUN_STARTED")[0].input.messages[0].content == "Second."
    assert [event.delta for event in of(events, "TEXT_MESSAGE_CONTENT")] == ["Two."]


def test_a_question_interrupts_and_its_answer_goes_on_in_the_same_run(front_end: Callable[..., FrontEnd]) -> None:
    client = front_end(["Well. ", asks("Which one?", choices=["a", "b"])], ["Thanks."])
    [interrupt] = client.run("Go.")[-1].outcome.interrupts
    assert (interrupt.reason, interrupt.message, interrupt.metadata) == (
        "input_required", "Which one?", {"choices": ["a", "b"]},
    )  # fmt: skip

    answer = {"interrupt_id": interrupt.id, "status": "resolved", "payload": "a"}
    events = client.run(None, run_id="run-2", resume=[answer])
    assert types(events) == [
        *("RUN_STARTED", "TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT"),
        *("TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "RUN_FINISHED"),
    ]
    assert (events[0].run_id, of(events, "TOOL_CALL_RESULT")[0].content) == ("run-2", "a")
    assert AgentRun.objects.count() == 1

    stale = httpx.post(client.url, json=client.body(None, resume=[answer]), headers=client.headers)
    assert (stale.status_code, stale.json()["code"]) == (409, "interrupt_not_open")


def test_an_answer_is_not_the_message_that_was_sent_before(front_end: Callable[..., FrontEnd]) -> None:
    """Clients send the whole conversation: without a text of the agent, it still ends with the first message."""
    client = front_end([asks("Which one?")], ["Thanks."])
    first = client.body("Go.")["messages"]
    [interrupt] = client.run(None, messages=first)[-1].outcome.interrupts
    answer = {"interrupt_id": interrupt.id, "status": "resolved", "payload": "the red one"}
    events = client.run(None, messages=first, resume=[answer])
    again = client.run(None, messages=[*first, *client.body("And now?")["messages"]])

    assert of(events, "TOOL_CALL_RESULT")[0].content == "the red one"
    assert of(again, "RUN_STARTED")[0].input.messages[0].content == "And now?"


ASKING = {"policies": {"approvals": [{"tools": "ledger_.*", "action": "ask", "reason": "It reads."}]}}


def resolved(interrupt: Any, payload: Any) -> list[dict[str, Any]]:
    return [{"interrupt_id": interrupt.id, "status": "resolved", "payload": payload}]


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
def test_what_is_no_decision_is_refused(front_end: Callable[..., FrontEnd], payload: Any) -> None:
    client = front_end([LOOK], ["Never."], **ASKING)
    [interrupt] = client.run("How many?")[-1].outcome.interrupts
    answers = [client.body(None, resume=resolved(interrupt, payload)), client.body("Go on.")]
    refused, busy = (httpx.post(client.url, json=body, headers=client.headers) for body in answers)

    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input")
    assert refused.json()["errors"][0]["pointer"].startswith("/resume/0/payload")
    assert (busy.status_code, busy.json()["code"]) == (409, "decision_required")
    assert Approval.objects.get().state == "pending"


def test_an_interrupt_that_somebody_else_has_settled_is_passed_by_cancelling(
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


def test_an_unknown_outcome_is_resolved(front_end: Callable[..., FrontEnd]) -> None:
    client = front_end(["Never."])
    run = make_waiting(client.agent.project)
    client.agent = run.agent  # type: ignore[assignment]
    AgUiRun.objects.create(agent=client.agent, run=run, thread_id=client.thread, client_run_id="run-a", after_seq=0)
    asked = client.send(client.body(None, "run-a"))[0]
    [interrupt] = asked[-1].outcome.interrupts
    assert (interrupt.reason, interrupt.message) == (
        "agentops:unknown_tool", "The outcome of Grep is unknown. What happened?",
    )  # fmt: skip
    assert interrupt.tool_call_id == of(asked, "TOOL_CALL_START")[-1].tool_call_id

    wrong = client.body(None, resume=resolved(interrupt, {"choice": "maybe"}))
    assert httpx.post(client.url, json=wrong, headers=client.headers).status_code == 422
    events = client.run(None, resume=resolved(interrupt, {"choice": "done", "text": "42"}))
    assert of(events, "TOOL_CALL_RESULT")[0].content == "42"


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


def test_a_repeated_request_starts_nothing_and_is_answered_alike(front_end: Callable[..., FrontEnd]) -> None:
    client = front_end(*TALK)
    body = client.body("How many?", run_id="run-a")
    with httpx.stream("POST", client.url, json=body, headers=client.headers) as answer:
        assert next(answer.iter_lines()).startswith("retry")
    [run] = AgentRun.objects.all()
    drive(run, client.worker)

    whole, ids = client.send(body)
    assert (AgentRun.objects.count(), AgUiRun.objects.count(), whole[-1].outcome.type) == (1, 1, "success")
    middle = len(ids) // 2
    rest, later = client.send(body, **{"Last-Event-ID": ids[middle]})
    assert (later, rest) == (ids[middle + 1 :], whole[len(whole) - len(rest) :])


def test_a_place_that_does_not_exist_ends_the_stream(front_end: Callable[..., FrontEnd]) -> None:
    client = front_end(["One."])
    client.run("First.", run_id="run-a")
    [error] = client.send(client.body("First.", run_id="run-a"), **{"Last-Event-ID": "999"})[0]

    assert (error.type.value, error.code) == ("RUN_ERROR", "stream_reset")


def test_a_stream_may_begin_at_any_event(front_end: Callable[..., FrontEnd]) -> None:
    client = front_end(["A" * 5000, "B" * 5000, LOOK, asks()], ["Thanks. ", "C" * 9000], **ASKING)
    [approval] = client.run("Go.")[-1].outcome.interrupts
    [interrupt] = client.run(None, resume=resolved(approval, True))[-1].outcome.interrupts
    client.run(None, resume=[{"interrupt_id": interrupt.id, "status": "resolved", "payload": "a"}])
    run = AgentRun.objects.get()
    logged = list(log.events_of(run.pk))
    whole = ag_ui_texts(run.pk, logged)

    for begin in range(1, len(logged)):
        assert ag_ui_texts(run.pk, logged[begin:]) == whole[begin:]


def test_a_failed_run_ends_with_an_error(front_end: Callable[..., FrontEnd]) -> None:
    client = front_end(["Never."])
    body = client.body("Go.")
    run = ag_ui_runs.start(
        SYSTEM,
        client.agent.project,
        client.agent,
        AgUiRequest(client.thread, body["runId"], [ClientMessage("m", "Go.")]),
    )
    failed = RunFailed(error_type="poison_step", error="It kills its worker.")
    with transaction.atomic():
        transitions.move(run.run, RunStatus.FAILED, failed, source=Source.WORKER, reason="poison_step")

    error = client.send(body)[0][-1]
    assert (error.type.value, error.message, error.code) == ("RUN_ERROR", "It kills its worker.", "poison_step")


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"tools": [{"name": "alert", "description": "", "parameters": {}}]}, 422, "frontend_tools_unsupported"),
        ({"messages": []}, 422, "message_empty"),
        ({"messages": [{"id": "m", "role": "assistant", "content": "Hi."}]}, 422, "message_empty"),
        (
            {"messages": [{"id": "m", "role": "user", "content": [{"type": "image", "source": {}}]}]},
            *(422, "unsupported_content"),
        ),
        ({"messages": [{"id": "m", "role": "user", "content": "x" * 200_001}]}, 422, "max_length"),
        ({"threadId": "a b"}, 422, "invalid_identifier"),
        ({"resume": [{"interruptId": "x", "status": "resolved"}]}, 409, "interrupt_not_open"),
    ],
)
def test_what_cannot_be_run_is_refused(
    front_end: Callable[..., FrontEnd], change: dict[str, Any], status: int, code: str
) -> None:
    client = front_end(["Never."])
    answer = httpx.post(client.url, json=client.body("Go.") | change, headers=client.headers)

    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert not AgentRun.objects.exists()


def test_a_thread_has_one_run_at_a_time_and_a_reader_none(front_end: Callable[..., FrontEnd]) -> None:
    client = front_end(["Never."])
    ag_ui_runs.start(
        SYSTEM, client.agent.project, client.agent, AgUiRequest(client.thread, "run-a", [ClientMessage("m", "Go.")])
    )
    busy = httpx.post(client.url, json=client.body("And this?"), headers=client.headers)
    assert (busy.status_code, busy.json()["code"]) == (409, "thread_busy")

    reader = with_key(client.agent.project, "read")
    assert httpx.post(client.url, json=client.body("Go."), headers=reader).status_code == 403
    assert AgentRun.objects.count() == 1
