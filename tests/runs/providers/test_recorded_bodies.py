"""Recorded vendor responses are parsed, stored, and sent again from their rows unchanged.

tests/support/recorded_vendor.py lists which of them an agent can receive, and why not the others.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Iterator
from dataclasses import astuple
from datetime import UTC, datetime
from itertools import chain
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters

from runs.conversation import call_ids, transcript
from runs.conversation.turn_usage import buckets_of, usage_of
from runs.engine.turns.model_stream import read
from runs.models import TurnUsage
from runs.providers import base, llm, messages
from runs.providers.base import ModelCall
from runs.providers.retries import classify
from tests.support.factories import make_agent, make_run
from tests.support.machine import SHARED, shared_directory
from tests.support.recorded_vendor import (
    ALSO_REBUILT,
    FILES,
    MET,
    OTHERS,
    Answer,
    Exchange,
    Vendor,
    buckets_in,
    exchanges,
    files_there,
    kinds,
    streams,
    told_by,
)
from tests.support.recorded_vendor import THINKING_MODELS as MODELS
from tests.support.second_pass import cases

Message = TypeVar("Message", ModelRequest, ModelResponse)
PROTOCOLS = cases(list(MODELS))
IS_SERVER_TOOL = '"type": "web_search_call"'
ROLES: dict[type, str] = {UserPromptPart: "user", ToolReturnPart: "tool_result"}
PROMPT = ModelRequest([SystemPromptPart("Be brief."), UserPromptPart("Go.")])


async def body_of(vendor: Vendor, model: str, history: list[ModelMessage]) -> str:
    """Return the request for this history, in the order sent."""
    vendor.answers = [Answer(b"{}", status=400)]
    with pytest.raises(ModelHTTPError):
        await read(base.get("llm").open(ModelCall(model, "node", 2, history)), lambda _: None)
    return json.dumps(vendor.asked[-1].body, ensure_ascii=False)


def continued(answer: ModelResponse) -> list[ModelMessage]:
    """Return a conversation with this answer, the results of its calls, and another question."""
    results = [ToolReturnPart(call.tool_name, "done", call.tool_call_id) for call in answer.tool_calls]
    return [PROMPT, answer, ModelRequest([*results, UserPromptPart("And now?")])]


def stored(message: Message, role: str = "assistant") -> Message:
    """Return the message as read from its row; PostgreSQL reorders the keys of JSON columns."""
    row, _ = transcript.new_row(uuid4(), 1, message, role=role, step=1, epoch=1)
    loaded = messages.load(json.loads(messages.canonical(row.content)))
    assert messages.sha256(messages.dump(loaded)) == row.sha256
    assert isinstance(loaded, type(message))
    return loaded


async def ask(model: str) -> ModelResponse:
    return await read(base.get("llm").open(ModelCall(model, "node", 1, [PROMPT])), lambda _: None, 20)


def without_times(message: ModelMessage) -> str:
    return re.sub(r'"timestamp":"[^"]*"', "", messages.canonical(messages.dump(message)))


async def parsed(vendor: Vendor, model: str, recorded: Exchange) -> ModelResponse:
    """Return the answer of a body, streamed or not. The product always streams."""
    is_stream = not recorded.body.startswith(b"{")
    vendor.answers = [Answer(recorded.body, content_type="text/event-stream" if is_stream else "application/json")]
    if is_stream:
        return await ask(model)
    return await llm.model_of(model).request([PROMPT], {"max_tokens": 1000}, ModelRequestParameters())


def answers_of(protocol: str) -> list[Exchange]:
    """Return the recorded answers of models in this protocol, streamed or not."""
    are_answers = {name for name, kind in kinds().items() if kind in {*MET, *ALSO_REBUILT} - {"refused"}}
    whole = {each.name: each for each in exchanges() if each.protocol == protocol}
    whole |= {
        each.name: Exchange(each.name, protocol, "", 200, each.body) for each in streams() if each.protocol == protocol
    }
    return [each for name, each in whole.items() if name in are_answers]


def test_every_recorded_body_has_its_kind() -> None:
    """A new file must be listed with its kind, which must match the content of the bodies."""
    shared_directory()
    assert files_there() == {directory: set(files) for directory, files in FILES.items()}
    bodies = {each.name: each.body for each in streams()} | {each.name: each.body for each in exchanges()}
    assert kinds().keys() == bodies.keys()
    assert set(kinds().values()) == {*MET, *OTHERS}
    told = {name: told_by(bodies[name]) for name in kinds()}
    unlike = {name: (kind, told[name]) for name, kind in kinds().items() if kind != told[name]}
    # These differ outside the text: in the finish reason, the status, or the request URL.
    assert {kind for kind, said in unlike.values() if said == "text"} == {
        "refusal",
        "refused",
        "token_count",
        "conversation",
        "completion",
        "no_model",
    }
    assert {said for _, said in unlike.values()} == {"text"}
    calls = {each.name for each in exchanges() if each.protocol}
    assert {kinds()[name] for name in bodies.keys() - calls if name in kinds()} >= {"token_count", "conversation"}
    assert {kinds()[name] for name in calls} == {*MET, *ALSO_REBUILT, "no_model"} - {"refusal", "compaction"}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_recorded_answer_is_sent_again_unchanged(protocol: str, vendor: Vendor) -> None:
    answers = answers_of(protocol)

    async def differences() -> dict[str, Any]:
        found: dict[str, Any] = {}
        for recorded in answers:
            answer = await parsed(vendor, MODELS[protocol], recorded)
            call_ids.make_usable(answer)
            sent = await body_of(vendor, MODELS[protocol], continued(answer))
            again = await body_of(vendor, MODELS[protocol], continued(stored(answer)))
            # The request contains the calls with their IDs and names.
            assert all(call.tool_name in sent for call in answer.tool_calls)
            if IS_SERVER_TOOL in sent:
                # Results of a vendor's tools are objects, whose keys a JSON column reorders.
                sent, again = (messages.canonical(json.loads(text)) for text in (sent, again))
            if sent != again:
                found[recorded.name] = (sent, again)
        return found

    assert len(answers) >= (10 if SHARED.is_dir() else 3)
    assert asyncio.run(differences()) == {}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_stream_received_byte_by_byte_is_the_same_answer(protocol: str, vendor: Vendor) -> None:
    recorded = [each for each in answers_of(protocol) if not each.body.startswith(b"{") and kinds()[each.name] in MET]

    async def differences() -> list[str]:
        found = []
        for each in recorded:
            whole = await parsed(vendor, MODELS[protocol], each)
            vendor.answers = [Answer(each.body, piece=1)]
            piecemeal = await ask(MODELS[protocol])
            if without_times(whole) != without_times(piecemeal):
                found.append(each.name)
        return found

    assert len(recorded) >= (3 if SHARED.is_dir() else 1)
    assert asyncio.run(differences()) == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_each_token_is_in_one_bucket(protocol: str, vendor: Vendor) -> None:
    """As the vendor counts them; each cost is computed or unknown, never wrong."""

    async def counted() -> dict[str, TurnUsage]:
        answers = [each for each in answers_of(protocol) if kinds()[each.name] in MET]
        found = {each.name: await parsed(vendor, MODELS[protocol], each) for each in answers}
        return {name: usage_of(uuid4(), 1, 0, answer, None) for name, answer in found.items()}

    rows, bodies = asyncio.run(counted()), {each.name: each.body for each in answers_of(protocol)}
    buckets = {name: astuple(buckets_of(row)) for name, row in rows.items()}
    assert buckets == {name: buckets_in(bodies[name]) for name in rows}
    assert {row.cost_source for row in rows.values()} <= {"computed", "unknown"}
    assert [name for name, row in rows.items() if (row.cost_usd is None) != (row.cost_source == "unknown")] == []
    assert sum(row.cost_source == "computed" for row in rows.values()) >= (5 if SHARED.is_dir() else 1)


@pytest.mark.django_db(transaction=True)
@pytest.mark.breaks_invariants("messages of many answers, without the events of a run")
@pytest.mark.parametrize("protocol", list(MODELS))
def test_a_conversation_of_all_answers_is_rebuilt_from_its_rows(protocol: str, vendor: Vendor) -> None:
    """One request with everything in the vendor's recordings, from memory and from the database."""
    run = make_run(make_agent(provider="llm", model=MODELS[protocol], tools=[]), "Go.")
    before, position = transcript.load(run).history, transcript.last_position(run.pk)

    async def turns() -> list[list[ModelMessage]]:
        return [continued(await parsed(vendor, MODELS[protocol], each))[1:] for each in answers_of(protocol)]

    said = asyncio.run(turns())
    for step, turn in enumerate(said, start=1):
        for role, message in rows_of(turn):
            position += 1
            transcript.new_row(run.pk, position, message, role=role, step=step, epoch=1)[0].save(force_insert=True)

    histories = ([*before, *chain(*said)], transcript.load(run).history)
    sent, again = (json.loads(asyncio.run(body_of(vendor, MODELS[protocol], each))) for each in histories)
    assert messages.canonical(again) == messages.canonical(sent)


def rows_of(turn: list[ModelMessage]) -> Iterator[tuple[str, ModelMessage]]:
    """Yield the messages as stored, with their roles: each request has one part."""
    for message in turn:
        if isinstance(message, ModelResponse):
            yield "assistant", message
        else:
            yield from ((ROLES[type(part)], messages.request(part)) for part in message.parts)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_media_are_sent_again_unchanged(protocol: str, vendor: Vendor) -> None:
    """In a user message, and in the result of a tool."""
    picture = BinaryContent(bytes(range(256)), media_type="image/png")
    asked = ModelRequest([UserPromptPart(["What is this?", picture, ImageUrl("https://example.com/cat.png")])])
    answer = ModelResponse([ToolCallPart("look", '{ "at" : 1.0,\n"at": 2}', "call_1")])
    result = ModelRequest([ToolReturnPart("look", ["Here:", picture], "call_1")])

    async def sent() -> tuple[str, str]:
        model = MODELS[protocol]
        again = [stored(asked, "user"), stored(answer), stored(result, "tool_result")]
        return await body_of(vendor, model, [asked, answer, result]), await body_of(vendor, model, [*again])

    before, after = asyncio.run(sent())
    assert base64.b64encode(picture.data).decode() in before
    assert after == before
    # pydantic-ai compacts arguments when sending; the row keeps the model's original text.
    assert stored(answer).parts == answer.parts


def test_recorded_error_responses_are_classified(vendor: Vendor) -> None:
    [recorded] = [each for each in exchanges("o1-mini") if each.status == 400]
    vendor.answers = [Answer(recorded.body, status=400, content_type="application/json")]
    call = ModelCall("openai-chat:o1-mini", "node", 1, [PROMPT])
    with pytest.raises(ModelHTTPError) as raised:
        asyncio.run(read(base.get("llm").open(call), lambda _: None))

    failure = classify(raised.value, datetime.now(UTC), call.model)
    assert (failure.error_type, failure.retryable) == ("invalid_request", False)
    assert json.loads(recorded.body)["error"]["message"].rstrip(".") in failure.message
