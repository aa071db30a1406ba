"""The conversation: stored rows equal the requests sent, and requests can be rebuilt from the rows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.usage import RequestUsage

from runs.conversation import transcript
from runs.lifecycle import transitions
from runs.models import AgentRun, AgentRunMessage
from runs.providers import base as providers
from runs.providers import messages
from runs.providers.base import ModelCall
from tests.support.factories import drive, make_agent, make_run
from timeline.models import LeaseLost

ANSWER = ModelResponse(
    parts=[
        ThinkingPart("why not", signature="c2lnbmVk", provider_name="anthropic"),
        TextPart("Grüße 🚀 \u2028 end"),
        ToolCallPart("grep", '{"q": "a\\"b", "n": 1.50}', tool_call_id="toolu_1"),
        ToolCallPart("ls", {"path": "/x", "deep": {"b": [1, None, True]}}, tool_call_id="toolu_2"),
    ],
    usage=RequestUsage(input_tokens=10, output_tokens=3, cache_read_tokens=4, details={"x": 2}),
    model_name="some-model",
    provider_name="anthropic",
    provider_response_id="msg_1",
    finish_reason="tool_call",
)
IMAGE = BinaryContent(b"\x89PNG\x00\xff\xfe", media_type="image/png")


def whole(message: ModelMessage) -> object:
    return ModelMessagesTypeAdapter.dump_python([message], mode="json")


@pytest.mark.parametrize(
    "message",
    [
        ANSWER,
        ModelResponse(parts=[]),
        messages.request(SystemPromptPart("Be brief.")),
        messages.request(UserPromptPart(["look", IMAGE])),
        messages.request(ToolReturnPart("ls", ["a", IMAGE], "toolu_2", outcome="failed")),
        messages.request(ToolReturnPart("ls", "", "toolu_2")),
    ],
    ids=["answer", "empty answer", "system", "image", "media result", "empty result"],
)
def test_a_message_survives_storing(message: ModelMessage) -> None:
    """IDs, names, exact arguments, thinking with its signature, unicode, images."""
    stored = json.loads(json.dumps(messages.dump(message)))
    assert whole(messages.load(stored)) == whole(message)
    assert messages.sha256(stored) == messages.sha256(messages.dump(message))


def test_the_stored_form_omits_defaults() -> None:
    stored = messages.dump(ANSWER)
    assert "state" not in stored
    assert None not in stored.values()
    assert stored["usage"] == {"input_tokens": 10, "output_tokens": 3, "cache_read_tokens": 4, "details": {"x": 2}}


def test_neighbouring_requests_are_merged() -> None:
    rows = [
        messages.request(SystemPromptPart("s")),
        messages.request(UserPromptPart("u")),
        ANSWER,
        messages.request(ToolReturnPart("grep", "1", "toolu_1")),
        messages.request(ToolReturnPart("ls", "2", "toolu_2")),
        messages.request(UserPromptPart("and now")),
        ModelResponse(parts=[TextPart("done")]),
    ]
    merged = messages.merge(rows)
    assert [len(m.parts) for m in merged] == [2, 4, 3, 1]
    assert [type(m) for m in merged] == [ModelRequest, ModelResponse] * 2


@pytest.mark.django_db(transaction=True)
def test_every_request_matches_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded request of each step equals the one rebuilt from the rows."""
    sent: list[bytes] = []

    provider = providers.get("fixture")
    open_call = provider.open

    def keep_and_open(call: ModelCall) -> Any:
        sent.append(ModelMessagesTypeAdapter.dump_json(call.history))
        return open_call(call)

    monkeypatch.setattr(provider, "open", keep_and_open)
    run = drive(make_run(make_agent(fixture="claude-code-7e", instructions="Be brief.")))
    rows = transcript.rows_of(run)
    for step, request in enumerate(sent, start=1):
        answer = next(i for i, row in enumerate(rows) if row.role == "assistant" and row.step_number == step)
        assert json.loads(ModelMessagesTypeAdapter.dump_json(transcript.merge(rows[:answer]))) == json.loads(request)
    assert len(sent) == run.step_count == 24


@pytest.mark.django_db
def test_our_messages_are_redacted_and_model_output_is_not() -> None:
    secret = "ghp_" + "a1B2c3D4e5F6" * 3
    run = make_run(prompt=f"use {secret}")
    row = run.messages.get(role="user")
    assert secret not in json.dumps(row.content)
    assert secret not in json.dumps(run.prompt) + run.title
    said, message = transcript.new_row(
        run.pk, 9, ModelResponse(parts=[TextPart(f"{secret} \0")]), role="assistant", step=1, epoch=1
    )
    assert said.content["parts"][0]["content"] == f"{secret} \ufffd"
    assert message.parts[0].content == f"{secret} \ufffd"  # type: ignore[union-attr]


@pytest.mark.django_db
def test_numbers_are_stored_as_they_are_read_back() -> None:
    """jsonb stores 1e16 as an integer and -0.0 as 0.0; the values stored, hashed and sent must be equal."""
    run = make_run()
    asked = ToolCallPart("sum", {"big": 1e16, "zero": -0.0, "small": 1e-7, "text": "1e+16", "n": 2.0}, "c1")
    answer = ModelResponse(parts=[asked])
    row, message = transcript.new_row(run.pk, 9, answer, role="assistant", step=1, epoch=None)
    row.save(force_insert=True)
    stored = AgentRunMessage.objects.get(pk=row.pk)
    assert bytes(stored.sha256) == messages.sha256(stored.content)
    assert whole(messages.load(stored.content)) == whole(message)
    args = message.parts[0].args  # type: ignore[union-attr]
    assert args == {"big": 10**16, "zero": 0.0, "small": 1e-7, "text": "1e+16", "n": 2.0}
    assert isinstance(args["big"], int)
    assert str(args["zero"]) == "0.0"


@pytest.mark.django_db
def test_the_database_refuses_a_second_answer_in_a_step() -> None:
    run = make_run()
    for position, fails in ((5, False), (6, True)):
        row, _ = transcript.new_row(run.pk, position, ModelResponse(parts=[]), role="assistant", step=1, epoch=None)
        if fails:
            with pytest.raises(IntegrityError, match=r"message_one_answer_per_step|UNIQUE"), transaction.atomic():
                row.save(force_insert=True)
        else:
            row.save(force_insert=True)
    assert AgentRunMessage.objects.filter(run=run, role="assistant").count() == 1


@pytest.mark.django_db
def test_a_worker_that_lost_its_lease_creates_no_checkpoint() -> None:
    """The only write of a step that appends no event is fenced too."""
    run = make_run()
    assert transitions.claim(run.pk, "one") is not None
    AgentRun.objects.filter(pk=run.pk).update(lease_expires_at="2000-01-01T00:00Z")
    assert transitions.claim(run.pk, "another") is not None
    with pytest.raises(LeaseLost), transaction.atomic():
        transcript.add_checkpoint(transcript.new_checkpoint(run.pk, 1, 2, 1), 1)
    assert not run.checkpoints.exists()
    transcript.add_checkpoint(transcript.new_checkpoint(run.pk, 1, 2, 2), 2)
    assert run.checkpoints.get().epoch == 2
