"""Answers as no provider documents them: a run takes what can be taken, and goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runs.models import TurnUsage
from runs.worker.worker import Worker
from tests.support.factories import drive, make_agent, make_run
from tests.support.providers.recorded_vendor import MODELS, Answer, Vendor
from tests.support.run_checks import check

pytestmark = pytest.mark.django_db(transaction=True)


def anthropic(text: bytes, *, stop: str, used: dict[str, Any]) -> Answer:
    message = {"id": "m", "type": "message", "role": "assistant", "content": [], "model": "claude-sonnet-4-6",
               "stop_reason": None, "stop_sequence": None, "usage": used}  # fmt: skip
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


SPEAKERS = {"anthropic": anthropic, "chat": chat}


@pytest.mark.filterwarnings("ignore:Failed to extract usage")
@pytest.mark.parametrize("protocol", list(SPEAKERS))
@pytest.mark.parametrize(
    ("stop", "used"),
    [("teleported", {"input_tokens": 3, "output_tokens": 2}), ("stop", {"input_tokens": -3, "output_tokens": -2})],
    ids=["unknown-stop-reason", "negative-usage"],
)
def test_it_is_taken(protocol: str, stop: str, used: dict[str, Any], vendor: Vendor, worker: Worker) -> None:
    vendor.answers = [SPEAKERS[protocol](b"Done.", stop=stop, used=used)]
    run = drive(make_run(make_agent(provider="llm", model=MODELS[protocol], tools=[]), "Go."), worker)

    assert (run.status, run.result) == ("completed", "Done."), run.error_message
    [row] = TurnUsage.objects.filter(run=run)
    assert (row.input_tokens, row.output_tokens) == (max(used["input_tokens"], 0), max(used["output_tokens"], 0))
    assert row.usage_complete is (used["input_tokens"] > 0)
    check(run)


@pytest.mark.parametrize("protocol", list(SPEAKERS))
def test_what_is_not_utf_8_is_asked_for_again(protocol: str, vendor: Vendor, worker: Worker) -> None:
    used = {"input_tokens": 3, "output_tokens": 2}
    vendor.answers = [SPEAKERS[protocol](text, stop="stop", used=used) for text in (b"D\xffone.", b"Done.")]
    run = drive(make_run(make_agent(provider="llm", model=MODELS[protocol], tools=[]), "Go."), worker)

    assert (run.status, run.result) == ("completed", "Done."), run.error_message
    assert list(run.errors.values_list("error_type", flat=True)) == ["incomplete_answer"]
    check(run)
