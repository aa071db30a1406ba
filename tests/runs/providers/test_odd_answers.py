"""Undocumented forms of answers: a run uses the valid parts and continues."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runs.engine.turns import model_stream, model_turn
from runs.models import TurnUsage
from runs.worker.worker import Worker
from tests.support.factories import drive, make_agent, make_run
from tests.support.recorded_vendor import MODELS, Answer, Vendor
from tests.support.run_checks import check

pytestmark = pytest.mark.django_db(transaction=True)


def anthropic(text: bytes, *, stop: str, used: dict[str, Any]) -> Answer:
    message = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": "claude-sonnet-4-6",
        "stop_reason": None,
        "stop_sequence": None,
        "usage": used,
    }
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "TEXT"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": used},
        {"type": "message_stop"},
    ]
    stream = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return Answer(stream.encode().replace(b"TEXT", text))


def chat(text: bytes, *, stop: str, used: dict[str, Any]) -> Answer:
    frame = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o"}
    names = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens"}
    counts = {names[name]: value for name, value in used.items()} | {"total_tokens": 0}
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": {"content": "TEXT"}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": stop}]},
        {"choices": [], "usage": counts},
    ]
    stream = "".join(f"data: {json.dumps(frame | chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    return Answer(stream.encode().replace(b"TEXT", text))


def responses(text: bytes, *, stop: str, used: dict[str, Any]) -> Answer:
    """Return a stream of a protocol that marks the end by the type of its last event."""
    counts = used | {
        "total_tokens": 0,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    frame = {
        "id": "r",
        "object": "response",
        "created_at": 1,
        "model": "gpt-4o",
        "status": "in_progress",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    item = {"id": "i", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    place = {"item_id": "i", "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": []}
    said = item | {"status": "completed", "content": [part | {"text": "TEXT"}]}
    completed = frame | {"status": stop.replace("stop", "completed"), "output": [said], "usage": counts}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": frame},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **place, "part": part},
        {"type": "response.output_text.delta", **place, "delta": "TEXT", "logprobs": []},
        {"type": "response.output_item.done", "output_index": 0, "item": said},
        {"type": "response.completed", "response": completed},
    ]
    numbered = (event | {"sequence_number": number} for number, event in enumerate(events))
    stream = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in numbered)
    return Answer(stream.encode().replace(b"TEXT", text))


SPEAKERS = {"anthropic": anthropic, "chat": chat, "responses": responses}
USED = {"input_tokens": 3, "output_tokens": 2}
#: The first event with content; a stream may stop forever before it.
CONTENT = {
    "anthropic": b"event: content_block_start",
    "chat": b'data: {"id": "c", "object"',
    "responses": b"event: response.output_item.added",
}
#: Keeps a connection alive, without content.
PING = {
    "anthropic": b'event: ping\ndata: {"type": "ping"}\n\n',
    "chat": b": keep-alive\n\n",
    "responses": b": ping\n\n",
}


@pytest.mark.filterwarnings("ignore:Failed to extract usage")
@pytest.mark.parametrize("protocol", list(SPEAKERS))
@pytest.mark.parametrize(
    ("stop", "used"),
    [("teleported", {"input_tokens": 3, "output_tokens": 2}), ("stop", {"input_tokens": -3, "output_tokens": -2})],
    ids=["unknown-stop-reason", "negative-usage"],
)
def test_odd_answers_are_accepted(
    protocol: str, stop: str, used: dict[str, Any], vendor: Vendor, worker: Worker
) -> None:
    vendor.answers = [SPEAKERS[protocol](b"Done.", stop=stop, used=used)]
    run = drive(make_run(make_agent(provider="llm", model=MODELS[protocol], tools=[]), "Go."), worker)

    assert (run.status, run.result) == ("completed", "Done."), run.error_message
    [row] = TurnUsage.objects.filter(run=run)
    assert (row.input_tokens, row.output_tokens) == (max(used["input_tokens"], 0), max(used["output_tokens"], 0))
    assert row.usage_complete is (used["input_tokens"] > 0)
    check(run)


@pytest.mark.parametrize("protocol", list(SPEAKERS))
def test_an_answer_that_is_not_utf_8_is_retried(protocol: str, vendor: Vendor, worker: Worker) -> None:
    vendor.answers = [SPEAKERS[protocol](text, stop="stop", used=USED) for text in (b"D\xffone.", b"Done.")]
    run = drive(make_run(make_agent(provider="llm", model=MODELS[protocol], tools=[]), "Go."), worker)

    assert (run.status, run.result) == ("completed", "Done."), run.error_message
    assert list(run.errors.values_list("error_type", flat=True)) == ["incomplete_answer"]
    check(run)


@pytest.mark.parametrize("protocol", list(SPEAKERS))
def test_an_answer_without_content_is_empty(protocol: str, vendor: Vendor, worker: Worker) -> None:
    vendor.answers = [SPEAKERS[protocol](b"", stop="stop", used=USED)]
    run = drive(make_run(make_agent(provider="llm", model=MODELS[protocol], tools=[]), "Go."), worker)

    assert (run.status, run.result, run.step_count) == ("completed", "", 1), run.error_message
    check(run)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", list(SPEAKERS))
@pytest.mark.parametrize("is_alive", [True, False], ids=["pings", "silence"])
def test_a_stream_that_never_ends_is_given_up(
    *, protocol: str, is_alive: bool, vendor: Vendor, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 60 seconds without content, however many keep-alive events the server sends."""
    assert model_turn.IDLE_S == 60
    monkeypatch.setattr(model_turn, "IDLE_S", 0.6)
    whole = SPEAKERS[protocol](b"Done.", stop="stop", used=USED)
    before, begins, after = whole.body.partition(CONTENT[protocol])
    pings = [PING[protocol]] * (30 if is_alive else 1)
    at = [len(before) + number * len(PING[protocol]) for number in range(len(pings))]
    pause_s = 1.8 / len(pings)
    late = Answer(before + b"".join(pings) + begins + after, pauses=tuple((each, pause_s) for each in at))
    vendor.answers = [late, whole]
    run = drive(make_run(make_agent(provider="llm", model=MODELS[protocol], tools=[]), "Go."), worker)

    assert (run.status, run.result) == ("completed", "Done."), run.error_message
    # On a busy machine, the second attempt may time out too.
    assert set(run.errors.values_list("error_type", flat=True)) == {"timeout"}
    check(run)


@pytest.mark.parametrize("protocol", list(SPEAKERS))
def test_an_endless_text_is_cut_off(
    protocol: str, vendor: Vendor, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run pauses: another attempt would produce as much text."""
    monkeypatch.setattr(model_stream, "MAX_SIZE", 10_000)
    vendor.answers = [SPEAKERS[protocol](b"and on " * 2_000, stop="stop", used=USED)]
    run = drive(make_run(make_agent(provider="llm", model=MODELS[protocol], tools=[]), "Go."), worker)

    assert (run.status, run.status_reason, len(vendor.asked)) == ("paused", "error", 1)
    assert list(run.errors.values_list("error_type", flat=True)) == ["answer_too_long"]
    assert "limit of 16 MiB" in run.error_message
    check(run)


@pytest.mark.parametrize("protocol", list(SPEAKERS))
def test_an_html_page_instead_of_a_stream_is_reported(protocol: str, vendor: Vendor, worker: Worker) -> None:
    vendor.answers = [
        Answer(b"<html>Sign in</html>", content_type="text/html"),
        SPEAKERS[protocol](b"Done.", stop="stop", used=USED),
    ]
    run = drive(make_run(make_agent(provider="llm", model=MODELS[protocol], tools=[]), "Go."), worker)

    assert (run.status, run.result) == ("completed", "Done."), run.error_message
    assert list(run.errors.values_list("error_type", flat=True)) == ["incomplete_answer"]
    check(run)
