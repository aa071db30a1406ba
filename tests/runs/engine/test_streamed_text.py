"""Text that streams is logged as it comes, put together so that the log stays short."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from pydantic_ai.messages import ThinkingPart

from runs.models import AgentRun
from runs.providers.base import ModelCall
from tests.crash.rig import check, events
from tests.crash.scripted import PIECE, Move
from tests.make import drive
from tests.runs.engine.conftest import MakeScripted
from timeline.redact import HOLD

pytestmark = pytest.mark.django_db(transaction=True)


def deltas(run: AgentRun, kind: str = "llm.text.delta") -> list[tuple[float, str]]:
    return [(event.ts.timestamp(), event.payload["text"]) for event in events(run) if event.type == kind]


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
    assert run.result == whole
    assert whole.startswith(shown)
    assert len(whole) - len(shown) <= HOLD + 20 * len(PIECE)
    pauses = [later - earlier for (earlier, _), (later, _) in pairwise(found)]
    assert all(pause > 0.2 for pause in pauses[1:])
    check(run)


def test_it_logs_a_large_piece_at_once(scripted: MakeScripted) -> None:
    def play(_: ModelCall) -> Iterable[Move]:
        for _number in range(8):
            yield from [PIECE * 60, 0.06]

    run = drive(scripted(play))

    assert len(deltas(run)) >= 6
    assert run.result == PIECE * 480
    check(run)


def test_it_logs_no_pieces_of_an_answer_that_came_whole(scripted: MakeScripted) -> None:
    run = drive(scripted(lambda _: [PIECE * 100]))

    assert deltas(run) == []
    assert run.result == PIECE * 100


def test_it_keeps_thinking_and_text_apart(scripted: MakeScripted) -> None:
    def play(_: ModelCall) -> Iterable[Move]:
        yield ThinkingPart(PIECE * 20)
        yield 0.4
        for _number in range(8):
            yield from [PIECE * 4, 0.1]

    run = drive(scripted(play))

    [(_, thought)] = deltas(run, "llm.thinking.delta")
    assert (PIECE * 20).startswith(thought)
    assert "".join(text for _, text in deltas(run)) in run.result
    assert run.result == PIECE * 32
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
    # The model's own words are kept as they are.
    assert secret in run.messages.get(role="assistant").content["parts"][0]["content"]
