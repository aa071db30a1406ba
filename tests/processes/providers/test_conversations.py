"""Test whole conversations with a third-party model server, over three protocols."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from runs.actions.resume import resume
from runs.models import AgentRun, RunError, TurnUsage
from runs.providers import llm
from runs.statuses import RunStatus
from runs.worker.worker import Worker
from tests.support.factories import drive, make_agent, make_run
from tests.support.loopback_servers import MockModelServer, assert_prefixes
from tests.support.recorded_vendor import THINKING_MODELS as MODELS
from tests.support.run_checks import check, events

pytestmark = pytest.mark.django_db(transaction=True)
protocols = pytest.mark.parametrize("protocol", list(MODELS))
PARALLEL = [
    {"id": "call_Zürich", "name": "ledger_read", "arguments": '{"n": 1}'},
    {"id": "call_b", "name": "ledger_idempotent", "arguments": '{"n": 2}'},
]
COUNTS = {"prompt_tokens": 120, "completion_tokens": 34, "input_tokens": 120, "output_tokens": 34}
#: The model's first answer, in the form in which each protocol repeats it.
SENT_AGAIN: dict[str, list[Any]] = {
    "anthropic": [
        {
            "role": "assistant",
            "content": [
                {"thinking": "Let me think. 🤔", "signature": "aimock-placeholder-signature", "type": "thinking"},
                {"text": "I call two.", "type": "text"},
                {"id": "call_Zürich", "type": "tool_use", "name": "ledger_read", "input": {"n": 1}},
                {"id": "call_b", "type": "tool_use", "name": "ledger_idempotent", "input": {"n": 2}},
            ],
        }
    ],
    "chat": [
        {
            "role": "assistant",
            "reasoning_content": "Let me think. 🤔",
            "content": "I call two.",
            "tool_calls": [
                {"id": "call_Zürich", "type": "function", "function": {"name": "ledger_read", "arguments": '{"n":1}'}},
                {"id": "call_b", "type": "function", "function": {"name": "ledger_idempotent", "arguments": '{"n":2}'}},
            ],
        }
    ],
    "responses": [
        {"summary": [{"text": "Let me think. 🤔", "type": "summary_text"}], "type": "reasoning"},
        {
            "role": "assistant",
            "type": "message",
            "status": "completed",
            "content": [{"text": "I call two.", "type": "output_text", "annotations": []}],
        },
        {"name": "ledger_read", "arguments": '{"n":1}', "call_id": "call_Zürich", "type": "function_call"},
        {"name": "ledger_idempotent", "arguments": '{"n":2}', "call_id": "call_b", "type": "function_call"},
    ],
}


def play(
    prompt: str, protocol: str, worker: Worker, tmp_path: Path, *, max_steps: int = 50, **settings: Any
) -> AgentRun:
    agent = make_agent(
        provider="llm",
        model=MODELS[protocol],
        tools=["ledger_read", "ledger_idempotent"],
        instructions="Use the tools. 🧰",
        settings={"ledger": str(tmp_path / "ledger"), **settings},
    )
    return drive(make_run(agent, prompt, max_steps=max_steps), worker)


def without_made_up(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item of a conversation without IDs made up by the server. An encrypted thought contains its ID."""
    if "encrypted_content" in item:
        assert base64.b64decode(item["encrypted_content"]).decode().endswith(item["id"])
    return {name: value for name, value in item.items() if name not in ("id", "encrypted_content")}


@protocols
def test_each_request_starts_with_the_previous_one(
    protocol: str, models: MockModelServer, worker: Worker, tmp_path: Path
) -> None:
    """The model returns thinking, text and parallel calls, then a single call, then the answer."""
    prompt = f"Two tools at once, over {protocol} ✅"
    models.script(
        prompt,
        {"reasoning": "Let me think. 🤔", "content": "I call two.", "toolCalls": PARALLEL, "usage": COUNTS},
        {"toolCalls": [{"id": "call_c", "name": "ledger_read", "arguments": '{"n": 3}'}], "usage": COUNTS},
        {"content": "12°C and 14:05.", "usage": COUNTS},
    )
    run = play(prompt, protocol, worker, tmp_path, max_tokens=900)

    assert (run.status, run.result) == (RunStatus.COMPLETED, "12°C and 14:05."), run.error_message
    sent = models.sent(prompt)
    assert len(sent) == len(models.journal(prompt)) == 3
    assert_prefixes(sent)
    body = json.loads(sent[2].body)
    limits = {"anthropic": "max_tokens", "chat": "max_completion_tokens", "responses": "max_output_tokens"}
    assert body[limits[protocol]] == 900
    conversation = body["input" if protocol == "responses" else "messages"]
    asked = next(place for place, item in enumerate(conversation) if prompt in str(item))
    expected = SENT_AGAIN[protocol]
    assert [without_made_up(item) for item in conversation[asked + 1 :]][: len(expected)] == expected
    calls = list(run.tool_calls.order_by("id").values_list("call_id", "status", "output"))
    assert [call[1:] for call in calls] == [("completed", f"did {n}") for n in (1, 2, 3)]
    usages = TurnUsage.objects.filter(run=run).order_by("step_number")
    assert [(row.input_tokens, row.output_tokens) for row in usages] == [(120, 34)] * 3
    check(run)


@protocols
def test_failures_are_retried_with_the_delay_that_the_server_sets(
    protocol: str, models: MockModelServer, worker: Worker, tmp_path: Path
) -> None:
    """The vendors' libraries do not retry: each failure is stored, and each attempt is one request."""
    prompt = f"Busy, over {protocol}"
    busy = {"error": {"message": "Slow down", "type": "rate_limit_error"}, "status": 429, "retryAfter": 1}
    overloaded = {"error": {"message": "Overloaded", "type": "overloaded_error"}, "status": 529}
    broken = {"error": {"message": "Internal", "type": "api_error"}, "status": 500}
    failures = [busy, overloaded, broken]
    models.script(prompt, [*failures, {"content": "Here I am."}])
    run = play(prompt, protocol, worker, tmp_path)

    assert (run.status, run.result) == (RunStatus.COMPLETED, "Here I am."), run.error_message
    types = ["rate_limited", "overloaded", "server_error"]
    assert list(RunError.objects.filter(run=run).order_by("attempt").values_list("error_type", flat=True)) == types
    sent, journal = models.sent(prompt), models.journal(prompt)
    assert [entry["response"]["status"] for entry in journal] == [each["status"] for each in failures] + [200]
    assert len({request.body for request in sent}) == 1
    waits = [e.payload["delay_ms"] for e in events(run) if e.type == "retry.scheduled"]
    assert waits[0] == 1000 > max(waits[1:])
    first, second = (entry["timestamp"] for entry in journal[:2])
    assert second - first >= 1000
    check(run)


@protocols
def test_a_cut_stream_is_requested_again(
    protocol: str, models: MockModelServer, worker: Worker, tmp_path: Path
) -> None:
    """Cut the stream in the text, then in the arguments of a call. Nothing of either is sent again."""
    prompt = f"Cut off, over {protocol}"
    call = {"id": "call_a", "name": "ledger_read", "arguments": '{"n": 1}'}
    cut = {"latency": 30, "chunkSize": 4}
    models.script(
        prompt,
        [
            {"content": "This sentence is cut in the middle.", "truncateAfterChunks": 4, **cut},
            {"toolCalls": [call | {"arguments": '{"n": 11111111111111}'}], "truncateAfterChunks": 4, **cut},
            {"content": "Whole.", "toolCalls": [call]},
        ],
        {"content": "Done."},
    )
    run = play(prompt, protocol, worker, tmp_path)

    assert (run.status, run.result) == (RunStatus.COMPLETED, "Done."), run.error_message
    errors = list(RunError.objects.filter(run=run).values_list("message", flat=True))
    assert len(errors) == 2
    sent = models.sent(prompt)
    assert sent[0].body == sent[1].body == sent[2].body
    assert_prefixes(sent)
    assert [event.type for event in events(run)].count("llm.turn.abandoned") == 2
    assert list(run.tool_calls.values_list("call_id", "input")) == [("call_a", {"n": 1})]
    check(run)


@pytest.mark.parametrize("protocol", ["chat", "responses"])
def test_malformed_arguments_are_reported_to_the_model(
    protocol: str, models: MockModelServer, worker: Worker, tmp_path: Path
) -> None:
    """The row stores them unchanged; the request contains them as JSON, which providers require.

    The server's Anthropic endpoint sends `{}` instead.
    """
    prompt = f"Malformed arguments, over {protocol}"
    run = play(prompt, protocol, worker, tmp_path)

    assert (run.status, run.result) == (RunStatus.COMPLETED, "Recovered."), run.error_message
    calls = dict(run.tool_calls.values_list("call_id", "status"))
    assert calls == {"call_bad": "error", "call_list": "error", "call_good": "completed"}
    sent = models.sent(prompt)
    assert_prefixes(sent)
    body = json.loads(sent[1].body)
    items = (
        body["input"]
        if protocol == "responses"
        else [call["function"] for message in body["messages"] for call in message.get("tool_calls", [])]
    )
    arguments = [json.loads(item["arguments"]) for item in items if "arguments" in item]
    assert arguments == [{"INVALID_JSON": '{"n": 1, "unterminated'}, {"INVALID_JSON": "[1, 2]"}, {"n": 7}]
    answer = run.messages.get(position=3)
    stored = [part["args"] for part in answer.content["parts"] if part["part_kind"] == "tool-call"]
    assert stored[:2] == ['{"n": 1, "unterminated', "[1, 2]"]
    check(run)


@protocols
def test_a_schema_and_settings_are_passed_on(
    protocol: str, models: MockModelServer, worker: Worker, tmp_path: Path
) -> None:
    prompt = f"As JSON, over {protocol}"
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    }
    models.script(prompt, {"content": '{"city": "Zürich"}'})
    run = play(prompt, protocol, worker, tmp_path, output_schema=schema, thinking="high", max_tokens=9000)

    assert (run.status, run.structured_output) == (RunStatus.COMPLETED, {"city": "Zürich"}), run.error_message
    body = json.loads(models.sent(prompt)[0].body)
    formats = {
        "anthropic": lambda: body["output_config"]["format"]["schema"],
        "chat": lambda: body["response_format"]["json_schema"]["schema"],
        "responses": lambda: body["text"]["format"]["schema"],
    }
    assert formats[protocol]() == schema
    thinking = {
        "anthropic": lambda: body["thinking"]["type"] in ("adaptive", "enabled"),
        "chat": lambda: "reasoning_effort" not in body,  # a model that does not think
        "responses": lambda: body["reasoning"]["effort"] == "high",
    }
    assert thinking[protocol]()
    check(run)


def test_a_resumed_run_continues_the_requests(models: MockModelServer, worker: Worker, tmp_path: Path) -> None:
    prompt = "In two runs"
    calls = [{"id": f"call_{n}", "name": "ledger_read", "arguments": f'{{"n": {n}}}'} for n in (1, 2)]
    models.script(prompt, {"reasoning": "Hm.", "toolCalls": calls[:1]})
    models.script("And in the second", {"reasoning": "Oh.", "toolCalls": calls[1:]}, {"content": "Done."}, resumes=True)
    first = play(prompt, "anthropic", worker, tmp_path, max_steps=1)
    assert (first.status, first.status_reason) == (RunStatus.PAUSED, "max_steps")
    run = drive(resume(first.pk, by="test", max_steps=9, message="And in the second?").run, worker)

    assert (run.status, run.result) == (RunStatus.COMPLETED, "Done."), run.error_message
    sent = models.sent(prompt)
    assert len(sent) == 3
    # The message of the resume is in the user turn that contains the results.
    asked = json.loads(sent[1].body)["messages"]
    assert [part["type"] for part in asked[-1]["content"]] == ["tool_result", "text"]
    assert_prefixes(sent)
    check(first)
    check(run)


@pytest.mark.parametrize(
    ("protocol", "finish_reason", "reason"),
    [
        *((protocol, "length", "answer_cut") for protocol in MODELS),
        *(("chat", "content_filter", "answer_refused"), ("anthropic", "refusal", "answer_refused")),
    ],
)
def test_an_answer_that_is_not_whole_pauses_and_can_be_continued(
    *, protocol: str, finish_reason: str, reason: str, models: MockModelServer, worker: Worker, tmp_path: Path
) -> None:
    """A cut answer is sent again, a refused one is not."""
    prompt, message = f"Not whole, over {protocol}: {reason}", f"Continue, over {protocol}: {reason}"
    # In this order: Anthropic's adapter joins two messages of a user, and the first match wins.
    models.script(message, {"content": ", and the rest."}, resumes=True)
    models.script(prompt, {"content": "The first half", "finishReason": finish_reason})
    first = play(prompt, protocol, worker, tmp_path)
    assert (first.status, first.status_reason) == (RunStatus.PAUSED, reason), first.error_message
    run = drive(resume(first.pk, by="test", message=message).run, worker)

    assert (run.status, run.result) == (RunStatus.COMPLETED, ", and the rest."), run.error_message
    sent = models.sent(prompt)
    assert len(sent) == 2
    assert ("The first half" in sent[1].body.decode()) is (reason == "answer_cut")
    check(first)
    check(run)


@pytest.mark.parametrize("vendor", ["openai-chat", "openai-responses", "anthropic"])
def test_an_agent_uses_a_server_of_its_settings(
    *, vendor: str, models: MockModelServer, worker: Worker, tmp_path: Path, settings: Settings, monkeypatch: Any
) -> None:
    """Use a local server with its key; the vendor's URL and key are not used."""
    settings.AGENTOPS_ALLOW_PRIVATE_SINKS = True
    settings.AGENTOPS_MODEL_KEYS = [f"127.0.0.1:{models.url.rpartition(':')[2]}=LOCAL_SERVER_KEY"]
    monkeypatch.setenv("LOCAL_SERVER_KEY", "of-the-local-server")
    for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/v1")
    prompt, model = f"Run locally, as {vendor}", f"{vendor}:llama3"
    call = {"id": "call_a", "name": "ledger_read", "arguments": '{"n": 1}'}
    models.script(prompt, {"reasoning": "Hm.", "content": "Looking.", "toolCalls": [call]}, {"content": "Done."})
    base_url = models.url if vendor == "anthropic" else f"{models.url}/v1"
    local = {"ledger": str(tmp_path / "ledger"), "base_url": base_url}
    agent = make_agent(provider="llm", model=model, tools=["ledger_read"], settings=local)
    run = drive(make_run(agent, prompt), worker)
    adapter: Any = llm.model_of(model, base_url)
    worker.loop.submit(adapter.client.close()).result(10)

    assert (run.status, run.result) == (RunStatus.COMPLETED, "Done."), run.error_message
    sent = models.sent(prompt)
    keys = {request.headers.get("authorization") or request.headers["x-api-key"] for request in sent}
    assert {key.removeprefix("Bearer ") for key in keys} == {"of-the-local-server"}
    answer = run.messages.get(role="assistant", step_number=1).content
    assert answer["provider_name"] == models.url.removeprefix("http://")
    assert_prefixes(sent)
    assert list(run.tool_calls.values_list("status", flat=True)) == ["completed"]
    check(run)
