"""AG-UI clients start, continue and follow runs; the protocol's official Python package parses each event."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from django.db import transaction
from pydantic_ai.messages import ThinkingPart, ToolCallPart

from agentops.accounts.access import SYSTEM
from runs.actions import ag_ui_runs
from runs.actions.ag_ui_runs import AgUiRequest, ClientMessage
from runs.lifecycle import transitions
from runs.models import AgentRun, AgentRunMessage, AgUiRun
from runs.queries.ag_ui_dialect import ag_ui_texts
from runs.statuses import RunStatus
from tests.support.clients import ASKING, STATE, FrontEnd, of, resolved, types
from tests.support.engine import asks
from tests.support.factories import drive, with_key
from timeline import log
from timeline.events.run import RunFailed
from timeline.models import Source

LOOK = ToolCallPart("ledger_read", {"n": 7}, "call-look")
#: A picture of one pixel.
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
SNAPSHOT = "MESSAGES_SNAPSHOT"
TALK = [[ThinkingPart("Hm."), "Let me ", "look. ", LOOK], ["It is ", "seven."]]


@pytest.mark.every_database
def test_a_complete_run_is_streamed(front_end: Callable[..., FrontEnd]) -> None:
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
    steps = [(event.type.value, event.step_name) for event in events if event.type.value.startswith("STEP_")]
    assert steps == [(f"STEP_{end}", f"step {number}") for number in (1, 2) for end in ("STARTED", "FINISHED")]
    assert [event.snapshot["status"] for event in of(events, STATE)] == ["queued", "running", "completed"]
    assert (finished.outcome.type, finished.result, finished.usage[0].input_tokens) == ("success", run.result, 200)
    assert {event.name for event in of(events, "CUSTOM")} >= {"llm.turn.start", "llm.turn.end"}


def test_a_new_run_of_a_thread_has_the_whole_conversation(front_end: Callable[..., FrontEnd]) -> None:
    client = front_end(["One."], ["Two."])
    client.run("First.")
    events = client.run("Second.")

    first, second = AgentRun.objects.order_by("pk")
    assert second.forked_from_id == first.pk
    assert of(events, "RUN_STARTED")[0].input.messages[0].content == "Second."
    assert [event.delta for event in of(events, "TEXT_MESSAGE_CONTENT")] == ["Two."]


def test_a_client_without_the_conversation_receives_it(front_end: Callable[..., FrontEnd]) -> None:
    """In the order of the thread, with the IDs of the stream; also after an interrupt, and if repeated."""
    client = front_end([*TALK[0], asks("Which?")], ["It is seven."], ["Two."])
    first = client.run("How many?")
    [interrupt] = first[-1].outcome.interrupts
    second = client.run(None, resume=resolved(interrupt, "that"))
    last = client.body("And now?", "run-last")
    third = client.run(None, messages=last["messages"], run_id="run-last")
    again = client.send(last)[0]

    assert not of(first, SNAPSHOT)
    texts = [each.delta for each in of([*first, *second], "TEXT_MESSAGE_CONTENT")]
    [snapshot], [row] = of(third, SNAPSHOT), AgentRunMessage.objects.filter(content__parts__0__content="And now?")
    assert third.index(snapshot) == 1
    assert [(each.role, each.content) for each in snapshot.messages if each.role != "reasoning"] == [
        ("user", "How many?"),
        ("assistant", texts[0]),
        ("assistant", None),
        ("tool", "did 7"),
        ("tool", "that"),
        ("assistant", texts[1]),
        ("user", "And now?"),
    ]
    ids = {each.id for each in snapshot.messages}
    streamed = [*first, *second]
    assert ids >= {
        each.message_id for name in ("TEXT_MESSAGE_START", "TOOL_CALL_RESULT") for each in of(streamed, name)
    }
    calls = [call for each in snapshot.messages if each.role == "assistant" for call in each.tool_calls or []]
    assert [call.id for call in calls] == [each.tool_call_id for each in of(streamed, "TOOL_CALL_START")]
    assert calls[0].function.arguments == '{"n":7}'
    assert of(again, SNAPSHOT) == [snapshot]
    # The new message has the ID that this site assigned, which identifies it from now on.
    known = {"id": snapshot.messages[-1].id, "role": "user", "content": "And now?"}
    assert known["id"] == str(row.pk)
    assert client.refused(client.body(None, messages=[known])) == (422, "message_empty")


def test_media_reach_the_model(front_end: Callable[..., FrontEnd]) -> None:
    """In the first message and in later messages of the thread. Text documents are sent as text, and so are masked."""
    client = front_end(["A dot."], ["A page."])
    image = {"type": "image", "source": {"type": "data", "value": DOT, "mime_type": "image/png"}}
    secret = b64encode(b"The key is AKIAIOSFODNN7EXAMPLE.").decode()
    note = {"type": "document", "source": {"type": "data", "value": secret, "mime_type": "text/plain"}}
    pdf = b64encode(b"%PDF-1.7").decode()
    page = {"type": "document", "source": {"type": "data", "value": pdf, "mime_type": "application/pdf"}}
    first = client.run(None, messages=[{"id": "m1", "role": "user", "content": [text_part("See."), image, note]}])
    client.run(None, messages=[{"id": "m2", "role": "user", "content": [page]}])

    contents = AgentRunMessage.objects.filter(role="user").order_by("pk").values_list("content", flat=True)
    [[text, dot], [sent]] = [content["parts"][0]["content"] for content in contents]
    assert text.startswith("See.\nThe key is [REDACTED:")
    assert (dot["data"], dot["media_type"]) == (DOT, "image/png")
    assert (sent["data"], sent["media_type"]) == (pdf, "application/pdf")
    assert of(first, "RUN_STARTED")[0].input.messages[0].content.endswith("\n[image/png]")
    run, fork = AgentRun.objects.order_by("pk")
    assert (run.result, fork.result, fork.forked_from_id) == ("A dot.", "A page.", run.pk)

    asking = front_end([asks("Which?")], ["Never."])
    asking.run("Go.")
    answer = asking.body(None, messages=[{"id": "m3", "role": "user", "content": [image]}])
    assert asking.refused(answer) == (422, "unsupported_content")


def text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def test_a_repeated_request_starts_nothing_and_gets_the_same_answer(front_end: Callable[..., FrontEnd]) -> None:
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


def test_an_invalid_cursor_ends_the_stream(front_end: Callable[..., FrontEnd]) -> None:
    client = front_end(["One."])
    client.run("First.", run_id="run-a")
    [error] = client.send(client.body("First.", run_id="run-a"), **{"Last-Event-ID": "999"})[0]

    assert (error.type.value, error.code) == ("RUN_ERROR", "stream_reset")


@pytest.mark.slow
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
        ({"tools": [{"name": "an alert", "description": "", "parameters": {}}]}, 422, "invalid_tool"),
        ({"messages": []}, 422, "message_empty"),
        ({"messages": [{"id": "m", "role": "assistant", "content": "Hi."}]}, 422, "message_empty"),
        *(
            ({"messages": [{"id": "m", "role": "user", "content": [part]}]}, 422, "unsupported_content")
            for part in (
                {"type": "image", "source": {}},
                {"type": "image", "source": {"type": "url", "value": "https://example.org/a.png"}},
                {"type": "image", "source": {"type": "data", "value": "not base64", "mimeType": "image/png"}},
                {"type": "image", "source": {"type": "data", "value": "PGh0bWw+", "mimeType": "image/png"}},
                {"type": "document", "source": {"type": "data", "value": "AAAA", "mimeType": "application/zip"}},
                {"type": "binary", "mimeType": "image/png", "data": "AAAA"},
                {"type": "video", "source": {"type": "data", "value": "AAAA", "mimeType": "video/mp4"}},
            )
        ),
        ({"messages": [{"id": "m", "role": "user", "content": "x" * 200_001}]}, 422, "max_length"),
        ({"threadId": "a b"}, 422, "invalid_identifier"),
        ({"resume": [{"interruptId": "x", "status": "resolved"}]}, 409, "interrupt_not_open"),
    ],
)
def test_invalid_input_is_refused(
    front_end: Callable[..., FrontEnd], change: dict[str, Any], status: int, code: str
) -> None:
    client = front_end(["Never."])
    answer = httpx.post(client.url, json=client.body("Go.") | change, headers=client.headers)

    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert not AgentRun.objects.exists()


def test_a_thread_has_one_run_at_a_time_and_none_for_a_reader(front_end: Callable[..., FrontEnd]) -> None:
    client = front_end(["Never."])
    ag_ui_runs.start(
        SYSTEM, client.agent.project, client.agent, AgUiRequest(client.thread, "run-a", [ClientMessage("m", "Go.")])
    )
    busy = httpx.post(client.url, json=client.body("And this?"), headers=client.headers)
    assert (busy.status_code, busy.json()["code"]) == (409, "thread_busy")

    reader = with_key(client.agent.project, "read")
    assert httpx.post(client.url, json=client.body("Go."), headers=reader).status_code == 403
    assert AgentRun.objects.count() == 1
