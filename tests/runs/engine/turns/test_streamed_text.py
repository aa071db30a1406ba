"""Text that streams is logged as it comes, put together so that the log stays short, and whole in the end."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from pydantic_ai.messages import ThinkingPart

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.models import AgentRun
from runs.providers.base import ModelCall
from tests.support.engine.fixture_types import MakeScripted
from tests.support.factories import drive
from tests.support.processes.scripted_model import PIECE, Move
from tests.support.run_checks import check, events

pytestmark = pytest.mark.django_db(transaction=True)


def deltas(run: AgentRun, kind: str = "llm.text.delta") -> list[tuple[float, str]]:
    return [(event.ts.timestamp(), event.payload["text"]) for event in events(run) if event.type == kind]


def types_of_turn(run: AgentRun) -> list[str]:
    types = [event.type for event in events(run)]
    return types[types.index("llm.turn.start") : types.index("llm.turn.end") + 1]


@pytest.mark.slow
def test_it_puts_small_pieces_together(scripted: MakeScripted) -> None:
    def play(_: ModelCall) -> Iterable[Move]:
        for _number in range(60):
            yield from [PIECE, 0.02]

    run = drive(scripted(play))

    found = deltas(run)
    # At least 1.2 s of text, one event in 250 ms.
    assert 3 <= len(found) <= 12
    shown = "".join(text for _, text in found)
    whole = PIECE * 60
    assert run.result == shown == whole
    pauses = [later - earlier for (earlier, _), (later, _) in pairwise(found)]
    # The last one comes with the answer.
    assert all(pause > 0.2 for pause in pauses[1:-1])
    check(run)


def test_it_logs_a_large_piece_at_once(scripted: MakeScripted) -> None:
    def play(_: ModelCall) -> Iterable[Move]:
        for _number in range(8):
            yield from [PIECE * 60, 0.06]

    run = drive(scripted(play))

    assert len(deltas(run)) >= 6
    assert run.result == PIECE * 480
    check(run)


def test_an_answer_that_came_whole_is_one_event(scripted: MakeScripted) -> None:
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
def test_the_deltas_of_a_block_joined_are_the_block(scripted: MakeScripted) -> None:
    """Thinking and text are kept apart, and nothing of either is held back in the end."""

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


def test_what_came_of_an_abandoned_answer_is_logged_before_it_is_marked(scripted: MakeScripted) -> None:
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


def test_no_secret_enters_the_log_cut_in_two(scripted: MakeScripted) -> None:
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
    # The model's own words are kept as they are.
    assert secret in run.messages.get(role="assistant").content["parts"][0]["content"]
