"""The repeat guard: which calls count as the same call again, and which reset the count."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart

from runs.conversation.repeats import STOP_AT, WARN_AT, streak, warning
from runs.providers import messages

Call = tuple[str, Any]
A: Call = ("search", {"q": "x", "n": 1})
B: Call = ("search", {"q": "y", "n": 1})


def conversation(*answers: list[Call] | str) -> list[ModelMessage]:
    """Return answers that request calls, with their results, and user messages in between."""
    rows: list[ModelMessage] = [messages.request(UserPromptPart("Go."))]
    for turn, answer in enumerate(answers):
        if isinstance(answer, str):
            rows.append(messages.request(UserPromptPart(answer)))
            continue
        parts = [ToolCallPart(name, args, f"{turn}.{place}") for place, (name, args) in enumerate(answer)]
        rows.append(ModelResponse(parts=[TextPart("So."), *parts]))
        rows += [messages.request(ToolReturnPart(part.tool_name, "done", part.tool_call_id)) for part in parts]
    return messages.merge(rows)


def last(history: list[ModelMessage]) -> int:
    answer = next(m for m in reversed(history) if isinstance(m, ModelResponse))
    return streak(reversed(history), answer.tool_calls[-1].tool_call_id)


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        (conversation([A]), 1),
        (conversation([A], [A], [A]), 3),
        (conversation([A, A, A]), 3),
        (conversation([A, A], [A]), 3),
        (conversation([A], [B], [A], [B], [A]), 1),
        (conversation([A, B], [A, B], [A, B]), 1),
        (conversation([B], [B], [A], [A]), 2),
        (conversation([A], [("look", A[1])]), 1),
        (conversation([A], [("search", {"n": 1, "q": "x"})]), 2),
        (conversation([A], [("search", '{"n": 1,\n "q": "x"}')]), 2),
        (conversation([("now", {})], [("now", None)], [("now", "{}")], [("now", "")]), 1),
        (conversation([("now", {})], [("now", None)], [("now", "{}")]), 3),
        (conversation([("now", '{"n": ')], [("now", '{"n": ')]), 2),
        (conversation([("now", '{"n": ')], [("now", '{"n":')]), 1),
        (conversation([A], [A], "Again, please.", [A]), 1),
        (conversation([A], [A], "continue", [A]), 3),
        (conversation(*[[A]] * 40), STOP_AT),
    ],
    ids=[
        "once",
        "thrice",
        "in one answer",
        "over answers",
        "alternating",
        "alternating in answers",
        "after another",
        "another tool",
        "keys in another order",
        "as text",
        "no JSON is itself",
        "no arguments",
        "broken alike",
        "broken otherwise",
        "asked for by a user",
        "resumed",
        "more than anybody has to know",
    ],
)
def test_count_of_consecutive_repeats(history: list[ModelMessage], expected: int) -> None:
    assert last(history) == expected


def test_the_calls_of_one_answer_are_counted_separately() -> None:
    history = conversation([A], [A, A, B])

    assert [streak(reversed(history), f"1.{place}") for place in range(3)] == [2, 3, 1]


def test_ids_of_earlier_answers_do_not_matter() -> None:
    """Vendors reuse IDs in later answers."""
    rows = [ModelResponse(parts=[ToolCallPart("search", {"q": q}, "call")]) for q in ("x", "y", "y")]

    assert streak(reversed(rows), "call") == 2


@pytest.mark.parametrize(
    ("length", "left"), [(WARN_AT, "5 more calls end the run"), (STOP_AT - 1, "One more call ends the run")]
)
def test_the_warning_announces_the_next_consequence(length: int, left: str) -> None:
    assert f"call {length} in a row" in warning(length)
    assert left in warning(length)
