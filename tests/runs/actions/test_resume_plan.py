"""The decision table of a resume, every row of it."""

from __future__ import annotations

import pytest

from runs.actions.resume import EarlierAttempt, Mode, plan

NEW, MIDDLE, OLD = EarlierAttempt("new", True), EarlierAttempt("middle", True), EarlierAttempt("old", True)
LOST = EarlierAttempt("lost", False)


@pytest.mark.parametrize(
    ("message", "append", "attempts", "expected"),
    [
        (None, True, [NEW], (Mode.RESUME, "new", ["continue"])),
        (None, False, [NEW], (Mode.RESUME, "new", ["continue"])),
        ("go left", True, [NEW], (Mode.RESUME, "new", ["go left"])),
        ("go left", False, [NEW], (Mode.FRESH, None, ["go left"])),
        ("go left", False, [LOST], (Mode.FRESH, None, ["go left"])),
        (None, True, [LOST], (Mode.FRESH, None, ["the prompt"])),
        ("go left", True, [LOST], (Mode.FRESH, None, ["the prompt", "go left"])),
        # Go back to the newest attempt that has a session.
        (None, True, [LOST, MIDDLE, OLD], (Mode.RESUME, "middle", ["continue"])),
        (None, True, [LOST, LOST, OLD], (Mode.RESUME, "old", ["continue"])),
        ("go left", True, [LOST, LOST], (Mode.FRESH, None, ["the prompt", "go left"])),
    ],
)
def test_every_row(message, append, attempts, expected) -> None:
    made = plan(message, append=append, attempts=attempts, prompt="the prompt")
    assert (made.mode, made.session, made.turns) == expected


@pytest.mark.parametrize(
    "message", ['"; rm -rf / #', "`id` $(id)", "--session-id=x", "line\nline", "🚀" * 3, "x" * 100_000]
)
def test_a_message_is_only_text(message: str) -> None:
    """No part of it is ever parsed."""
    assert plan(message, append=True, attempts=[NEW], prompt="p").turns == [message]


def test_an_empty_prompt_adds_no_turn() -> None:
    assert plan("go", append=True, attempts=[LOST], prompt="").turns == ["go"]
