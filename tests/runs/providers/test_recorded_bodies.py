"""Recorded answers of the vendors are parsed, stored, and sent again from their rows as they came."""

from __future__ import annotations

import asyncio
import base64
import json
from datetime import UTC, datetime
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
from runs.engine.turns.model_stream import read
from runs.providers import base, llm, messages
from runs.providers.base import ModelCall
from runs.providers.retries import classify
from tests.support.providers.recorded_vendor import THINKING_MODELS as MODELS
from tests.support.providers.recorded_vendor import Answer, Exchange, Vendor, exchanges, streams
from tests.support.second_pass import cases
from tests.support.services import shared_directory

Message = TypeVar("Message", ModelRequest, ModelResponse)
PROTOCOLS = cases(list(MODELS))
#: Recordings of model calls that are no answers of a model: a server of nonsense, and a refused request.
NO_ANSWERS = {"test_text_response-0", "test_openai_o1_mini_system_role[system]-0"}
IS_SERVER_TOOL = '"type": "web_search_call"'
PROMPT = ModelRequest([SystemPromptPart("Be brief."), UserPromptPart("Go.")])


async def body_of(vendor: Vendor, model: str, history: list[ModelMessage]) -> str:
    """The request for this history, in the order in which it was sent."""
    vendor.answers = [Answer(b"{}", status=400)]
    with pytest.raises(ModelHTTPError):
        await read(base.get("llm").open(ModelCall(model, "node", 2, history)), lambda _: None)
    return json.dumps(vendor.asked[-1].body, ensure_ascii=False)


def continued(answer: ModelResponse) -> list[ModelMessage]:
    """A conversation with this answer, the results of its calls, and another question."""
    results = [ToolReturnPart(call.tool_name, "done", call.tool_call_id) for call in answer.tool_calls]
    return [PROMPT, answer, ModelRequest([*results, UserPromptPart("And now?")])]


def stored(message: Message, role: str = "assistant") -> Message:
    """The message as its row gives it back; the columns of PostgreSQL order the keys of JSON anew."""
    row, _ = transcript.new_row(uuid4(), 1, message, role=role, step=1, epoch=1)
    loaded = messages.load(json.loads(messages.canonical(row.content)))
    assert messages.sha256(messages.dump(loaded)) == row.sha256
    assert isinstance(loaded, type(message))
    return loaded


async def parsed(vendor: Vendor, model: str, recorded: Exchange) -> ModelResponse:
    """The answer of a body, streamed or not. The product always streams."""
    is_stream = not recorded.body.startswith(b"{")
    vendor.answers = [Answer(recorded.body, content_type="text/event-stream" if is_stream else "application/json")]
    if is_stream:
        return await read(base.get("llm").open(ModelCall(model, "node", 1, [PROMPT])), lambda _: None, 20)
    return await llm.model_of(model).request([PROMPT], {"max_tokens": 1000}, ModelRequestParameters())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_recorded_answer_is_sent_again_as_it_came(protocol: str, vendor: Vendor) -> None:
    shared_directory()
    answers = [each for each in exchanges() if each.protocol == protocol and each.name not in NO_ANSWERS]
    answers += [Exchange(each.name, protocol, "", 200, each.body) for each in streams() if each.protocol == protocol]

    async def differences() -> dict[str, Any]:
        found: dict[str, Any] = {}
        for recorded in answers:
            answer = await parsed(vendor, MODELS[protocol], recorded)
            call_ids.make_usable(answer)
            sent = await body_of(vendor, MODELS[protocol], continued(answer))
            again = await body_of(vendor, MODELS[protocol], continued(stored(answer)))
            # The calls are in the request with their IDs and names.
            assert all(call.tool_name in sent for call in answer.tool_calls)
            if IS_SERVER_TOOL in sent:
                # What a tool of the vendor did is an object, whose keys a column orders anew.
                sent, again = (messages.canonical(json.loads(text)) for text in (sent, again))
            if sent != again:
                found[recorded.name] = (sent, again)
        return found

    assert len(answers) >= 10
    assert asyncio.run(differences()) == {}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_media_are_sent_again_as_they_came(protocol: str, vendor: Vendor) -> None:
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
    # pydantic-ai compacts arguments when it sends them; the row keeps what the model wrote.
    assert stored(answer).parts == answer.parts


def test_a_recorded_refusal_of_a_request_is_named(vendor: Vendor) -> None:
    shared_directory()
    [recorded] = [each for each in exchanges("o1-mini") if each.status == 400]
    vendor.answers = [Answer(recorded.body, status=400, content_type="application/json")]
    call = ModelCall("openai-chat:o1-mini", "node", 1, [PROMPT])
    with pytest.raises(ModelHTTPError) as raised:
        asyncio.run(read(base.get("llm").open(call), lambda _: None))

    failure = classify(raised.value, datetime.now(UTC), call.model)
    assert (failure.error_type, failure.retryable) == ("invalid_request", False)
    assert json.loads(recorded.body)["error"]["message"].rstrip(".") in failure.message
