"""An answer cut off without its terminal event is a failed attempt, never a result."""

from __future__ import annotations

import asyncio
import functools
import json
import random
import re
from collections.abc import AsyncIterator, Iterator
from typing import get_args

import pytest
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, UserPromptPart
from pydantic_ai.models.function import FunctionModel

from runs.engine.turns.model_stream import read
from runs.models import RunError
from runs.providers import base, llm
from runs.providers.base import IncompleteAnswer, ModelCall
from runs.worker.worker import Worker
from tests.support.factories import drive, make_agent, make_run
from tests.support.machine import SHARED
from tests.support.recorded_vendor import MODELS, Answer, FixtureResult, Framing, Vendor, has_ended, streams
from tests.support.run_checks import check, events
from tests.support.second_pass import cases

HISTORY: list[ModelMessage] = [ModelRequest([UserPromptPart("How do I cross the street?")])]
#: Random cuts of each body, and more cuts among its last bytes.
CUTS, LAST, MORE = 8, 90, 6


@functools.cache
def whole_streams(protocol: str) -> list[FixtureResult]:
    """Return the recorded streams of a protocol that have their terminal event."""
    return [each for each in streams() if each.protocol == protocol and has_ended(protocol, each.body)]


async def ask(protocol: str, **settings: object) -> ModelResponse:
    call = ModelCall(MODELS[protocol], "node", 1, HISTORY, settings=settings)
    return await read(base.get("llm").open(call), lambda _: None, 20)


def answer_of(protocol: str, **settings: object) -> ModelResponse:
    llm.adapter_of.cache_clear()  # its connections belong to a closed event loop
    return asyncio.run(ask(protocol, **settings))


def cuts_of(recorded: FixtureResult) -> Iterator[tuple[int, Framing]]:
    """Yield positions to cut a body, and how the connection ends there; then the whole body with each ending."""
    draw = random.Random(recorded.name)
    size, framings = len(recorded.body), get_args(Framing)
    for _ in range(CUTS):
        yield draw.randrange(size), draw.choice(framings)
    for _ in range(MORE):
        yield size - draw.randrange(1, min(LAST, size)), draw.choice(framings)
    yield from ((size, framing) for framing in framings)


def test_the_recordings_hold_every_protocol() -> None:
    assert all(whole_streams(protocol) for protocol in MODELS)
    if SHARED.is_dir():
        assert sum(len(whole_streams(protocol)) for protocol in MODELS) >= 15


@pytest.mark.slow
@pytest.mark.parametrize("protocol", MODELS)
def test_no_answer_is_complete_without_its_terminal_event(protocol: str, vendor: Vendor) -> None:
    for recorded in whole_streams(protocol):
        check_cuts(recorded, vendor)


def check_cuts(recorded: FixtureResult, vendor: Vendor) -> None:
    async def answered() -> list[tuple[int, Framing]]:
        found = []
        for cut, framing in cuts_of(recorded):
            vendor.answers = [Answer(recorded.body, cut, framing)]
            try:
                await ask(recorded.protocol)
            except (IncompleteAnswer, ModelAPIError):
                continue
            found.append((cut, framing))
        return found

    found = asyncio.run(answered())
    size = len(recorded.body)
    assert [at for at in found if not has_ended(recorded.protocol, recorded.body[: at[0]])] == []
    assert {(size, "chunked"), (size, "close")} <= set(found)


@pytest.mark.slow
def test_a_finish_reason_may_be_waived(vendor: Vendor) -> None:
    """For servers that speak Chat Completions and never send one."""
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    pieces = [{"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]} for text in ("Go", " on.")]
    lines = [f"data: {json.dumps(chunk | piece)}\n\n" for piece in pieces]
    vendor.answers = [Answer("".join([*lines, "data: [DONE]\n\n"]).encode())]

    assert answer_of("chat", needs_finish_reason=False).text == "Go on."
    with pytest.raises(IncompleteAnswer, match="before the answer was complete"):
        answer_of("chat")


def test_a_stream_without_events_is_refused(vendor: Vendor) -> None:
    vendor.answers = [Answer(b"")]
    for protocol in MODELS:
        with pytest.raises(IncompleteAnswer, match="no event"):
            answer_of(protocol)


def test_a_model_in_this_process_needs_no_finish_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async def says(_: object, __: object) -> AsyncIterator[str]:
        yield "All"
        yield " done."

    monkeypatch.setattr(llm, "model_of", lambda *_: FunctionModel(stream_function=says))
    monkeypatch.setattr("pydantic_ai.models.ALLOW_MODEL_REQUESTS", True)
    answer = asyncio.run(ask("chat"))
    assert (answer.text, answer.finish_reason) == ("All done.", None)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("protocol", cases(list(MODELS)))
def test_a_run_retries_a_cut_answer(protocol: str, vendor: Vendor, worker: Worker) -> None:
    """The stored rows do not depend on the protocol, so after the SQLite run, one protocol is enough."""
    recorded = max(whole_streams(protocol), key=lambda each: len(each.body))
    ends = (found.end() for found in re.finditer(b"\n\n", recorded.body))
    *_, cut = (end for end in ends if not has_ended(protocol, recorded.body[:end]))
    # The pause is long enough for the text before it to be sent.
    vendor.answers = [Answer(recorded.body, cut, pauses=((cut, 0.5),)), Answer(b""), Answer(recorded.body)]
    run = drive(make_run(make_agent(provider="llm", model=MODELS[protocol], tools=[]), "Go."), worker)

    assert run.status == "completed", run.error_message
    assert len(vendor.asked) == 3
    assert {body["stream"] for body in (asked.body for asked in vendor.asked)} == {True}
    assert list(RunError.objects.filter(run=run).values_list("error_type", flat=True)) == ["incomplete_answer"] * 2
    shown = [event.type for event in events(run)]
    assert shown.index("llm.text.delta") < shown.index("llm.turn.abandoned") < shown.index("llm.turn.end")
    reasons = [event.payload["reason"] for event in events(run) if event.type == "llm.turn.abandoned"]
    assert reasons == ["incomplete_answer"] * 2
    assert run.messages.filter(role="assistant").count() == 1
    check(run)
