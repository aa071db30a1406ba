"""Streamed text is logged as it arrives, in merged pieces to keep the log short, and completely at the end."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from pydantic_ai.messages import ThinkingPart

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.models import AgentRun
from runs.providers.base import ModelCall
from tests.support.engine import MakeScripted
from tests.support.factories import drive
from tests.support.run_checks import check, events
from tests.support.scripted_model import PIECE, Move

pytestmark = pytest.mark.django_db(transaction=True)


def deltas(run: AgentRun, kind: str = "llm.text.delta") -> list[tuple[float, str]]:
    return [(event.ts.timestamp(), event.payload["text"]) for event in events(run) if event.type == kind]


def types_of_turn(run: AgentRun) -> list[str]:
    types = [event.type for event in events(run)]
    return types[types.index("llm.turn.start") : types.index("llm.turn.end") + 1]


@pytest.mark.slow
def test_small_pieces_are_merged(scripted: MakeScripted) -> None:
    def play(_: ModelCall) -> Iterable[Move]:
        for _number in range(60):
            yield from [PIECE, 0.02]

    run = drive(scripted(play))

    found = deltas(run)
    # 1.2 s of text or more, and one event per 250 ms.
    assert 3 <= len(found) <= 12
    shown = "".join(text for _, text in found)
    whole = PIECE * 60
    assert run.result == shown == whole
    pauses = [later - earlier for (earlier, _), (later, _) in pairwise(found)]
    # The last piece is logged with the answer.
    assert all(pause > 0.2 for pause in pauses[1:-1])
    check(run)


def test_a_large_piece_is_logged_immediately(scripted: MakeScripted) -> None:
    def play(_: ModelCall) -> Iterable[Move]:
        for _number in range(8):
            yield from [PIECE * 60, 0.06]

    run = drive(scripted(play))

    assert len(deltas(run)) >= 6
    assert run.result == PIECE * 480
    check(run)


def test_an_answer_in_one_piece_is_one_event(scripted: MakeScripted) -> None:
    run = drive(scripted(lambda _: [ThinkingPart(PIECE * 3), PIECE * 100]))

    assert deltas(run) == []
    [whole] = [event for event in events(run) if event.type == "llm.text"]
    [thought] = [event for event in events(run) if event.type == "llm.thinking"]
    assert (whole.payload, whole.step) == ({"text": PIECE * 100, "index": 1}, 1)
    assert thought.payload == {"text": PIECE * 3, "index": 0}
    assert types_of_turn(run) == ["llm.turn.start", "llm.thinking", "llm.text", "message.added", "llm.turn.end"]
    assert run.result == PIECE * 100
    check(run)


@pytest.mark.slow
def test_the_deltas_of_a_block_add_up_to_the_block(scripted: MakeScripted) -> None:
    """Thinking and text are separate, and both are complete at the end."""

    def play(_: ModelCall) -> Iterable[Move]:
        yield ThinkingPart(PIECE * 20)
        yield 0.4
        for _number in range(8):
            yield from [PIECE * 4, 0.1]
        yield "The end."

    run = drive(scripted(play))

    assert "".join(text for _, text in deltas(run, "llm.thinking.delta")) == PIECE * 20
    assert "".join(text for _, text in deltas(run)) == run.result == PIECE * 32 + "The end."
    assert not {"llm.text", "llm.thinking"} & {event.type for event in events(run)}
    check(run)


def test_the_text_of_an_abandoned_answer_is_logged_before_the_abandon_event(scripted: MakeScripted) -> None:
    left: list[Exception] = [ConnectionResetError("by peer")]

    def play(_: ModelCall) -> Iterable[Move]:
        yield PIECE * 10
        if left:
            yield left.pop()
        yield " The end."

    run = drive(scripted(play))

    shown, last = types_of_turn(run), PIECE * 10 + " The end."
    assert shown[:4] == ["llm.turn.start", "llm.text.delta", "llm.turn.abandoned", "retry.scheduled"]
    assert shown[4:] == ["llm.turn.start", "llm.text", "message.added", "llm.turn.end"]
    assert run.result == last
    check(run)


def test_a_secret_split_across_deltas_is_not_logged(scripted: MakeScripted) -> None:
    secret = "sk-ant-api03-" + "Ab1" * 30

    def play(_: ModelCall) -> Iterable[Move]:
        yield PIECE * 4
        for start in range(0, len(secret), 7):
            yield from [secret[start : start + 7], 0.03]
        yield from [PIECE * 4, 0.3, PIECE * 4, 0.3]

    run = drive(scripted(play))

    shown = "".join(text for _, text in deltas(run))
    assert secret[:30] not in shown
    assert "[REDACTED:" in shown
    assert shown == REDACTOR.clean_text(run.messages.get(role="assistant").content["parts"][0]["content"])[0]
    # The model's message is stored unmasked.
    assert secret in run.messages.get(role="assistant").content["parts"][0]["content"]
