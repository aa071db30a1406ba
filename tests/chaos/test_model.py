"""Tests of the deterministic model: only the seed and the conversation determine the answer."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolReturnPart, UserPromptPart

from tests.chaos.environment.deterministic_model import MOST_FAULTS, fault_of, length_of, outside, said, wanted
from tests.chaos.schedules.sabotage_proofs import PAYS_FIRST

SETTINGS = {"seed": 7, "length": 4}


def conversation(*notes: str, result: str = "found it") -> list[ModelMessage]:
    asked = wanted(SETTINGS, 1, [ModelRequest([UserPromptPart("Go.")])])
    told = [ToolReturnPart(call.tool_name, result, call.tool_call_id) for call in asked]
    spoken = [UserPromptPart(note) for note in notes]
    return [ModelRequest([UserPromptPart("Go.")]), ModelResponse(asked), ModelRequest([*told, *spoken])]


def answer(history: list[ModelMessage], **changes: Any) -> list[Any]:
    return [(call.tool_name, call.args) for call in wanted(SETTINGS | changes, 2, history)]


def test_the_same_conversation_gets_the_same_answer() -> None:
    assert answer(conversation()) == answer(conversation())


def test_a_different_tool_result_gets_a_different_answer() -> None:
    assert answer(conversation()) != answer(conversation(result="nothing there"))


def test_a_different_seed_gets_a_different_answer() -> None:
    assert answer(conversation()) != answer(conversation(), seed=8)


def test_messages_from_people_do_not_change_the_answer() -> None:
    talked = conversation("note 1", "continue")
    assert list(said(talked)) == list(said(conversation()))
    assert outside("continue")
    assert not outside("And what of 3?")


def test_a_step_has_one_to_four_calls_and_the_last_answer_none() -> None:
    counts = Counter(len(wanted({"seed": seed, "length": 4}, 4, conversation())) for seed in range(200))
    assert set(counts) == {1, 2, 3, 4}
    assert wanted(SETTINGS, 5, conversation()) == []
    assert {length_of({"seed": seed}) for seed in range(200)} == {3, 4, 5, 6, 7, 8}


def test_all_kinds_of_calls_occur() -> None:
    """Include truncated arguments, wrong arguments and a tool that does not exist."""
    calls = [call for seed in range(300) for call in wanted({"seed": seed, "length": 4}, 2, conversation())]
    assert {call.tool_name for call in calls} == {"look_up", "place_order", "pay", "no_such_tool"}
    assert {"cut" if isinstance(call.args, str) else next(iter(call.args or {})) for call in calls} == {
        "cut",
        "n",
        "number",
    }


def test_the_model_fails_sometimes_but_not_until_a_run_fails() -> None:
    faults = [fault_of({"seed": seed, "faults": True}, 2, ordinal) for seed in range(300) for ordinal in (1, 2)]
    assert {"", "rate limit", "server error", "broken stream"} == set(faults)
    assert not any(fault_of({"seed": seed, "faults": True}, 2, MOST_FAULTS + 1) for seed in range(300))
    assert not any(fault_of({"seed": seed}, 2, 1) for seed in range(300))


def test_the_programs_of_the_proofs_begin_with_a_payment() -> None:
    for seed in (PAYS_FIRST, PAYS_FIRST + 100):
        [first, *_] = wanted({"seed": seed, "length": 3}, 1, [ModelRequest([UserPromptPart("Go.")])])
        assert (first.tool_name, list(first.args)) == ("pay", ["n"])
