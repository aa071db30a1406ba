"""The reasons why models end answers: the words of all providers, and what a request repeats of such answers."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from runs.providers.finish_reasons import AnswerFault, explain, fault_of, named, reason_of, why_not_run
from runs.providers.messages import sendable


def answer(*parts: ModelResponsePart, reason: Any = None, provider: str = "", **details: Any) -> ModelResponse:
    return ModelResponse(
        list(parts), finish_reason=reason, provider_name=provider or None, provider_details=details or None
    )


def user(text: str) -> ModelRequest:
    return ModelRequest([UserPromptPart(text)])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        # Anthropic, Chat Completions, Responses, Google, Bedrock, Mistral, Cohere, Z.AI, vLLM, the AI SDK, …
        ("stop", "end_turn stop_sequence stop completed STOP COMPLETE eos_token compaction"),
        ("tool_call", "tool_use tool_calls function_call TOOL_CALL tool-calls"),
        ("length", "max_tokens length max_output_tokens MAX_TOKENS model_length model_context_window_exceeded"),
        ("length", "FinishReason.MAX_TOKENS CONTINUATION pause_turn incomplete"),
        ("content_filter", "refusal content_filter SAFETY RECITATION BLOCKLIST PROHIBITED_CONTENT SPII MODEL_ARMOR"),
        ("content_filter", "guardrail_intervened content_filtered content-filter sensitive IMAGE_SAFETY ERROR_TOXIC"),
        ("error", "error failed cancelled MALFORMED_FUNCTION_CALL malformed_tool_use network_error ERROR TIMEOUT"),
        (None, "teleported OTHER unknown"),
    ],
)
def test_words_of_providers_are_named(name: str | None, words: str) -> None:
    assert {word: named(word) for word in words.split()} == dict.fromkeys(words.split(), name)


@pytest.mark.parametrize("value", [None, 3, ["stop"], {}, "", "x" * 1000])
def test_other_values_have_no_name(value: object) -> None:
    assert named(value) is None


def test_the_name_of_the_library_takes_precedence() -> None:
    assert reason_of(answer(reason="stop", finish_reason="max_tokens")) == "stop"
    assert reason_of(answer(finish_reason="max_tokens")) == "length"
    assert reason_of(answer(finish_reason="OTHER", provider="google-gla")) == "content_filter"
    assert reason_of(answer(finish_reason="OTHER", provider="another")) is None
    assert reason_of(answer()) is None


def test_only_two_names_mean_a_fault() -> None:
    faults = {
        name: fault_of(answer(reason=name)) for name in ("stop", "tool_call", "error", "length", "content_filter")
    }
    assert faults == {
        "stop": None,
        "tool_call": None,
        "error": None,
        "length": AnswerFault.CUT,
        "content_filter": AnswerFault.REFUSED,
    }


@pytest.mark.parametrize(
    ("parts", "reason", "details", "expected"),
    [
        (
            [],
            "length",
            {"finish_reason": "max_tokens"},
            "cut off because the model reached its token limit (max_tokens).",
        ),
        (
            [],
            "length",
            {"finish_reason": "model_context_window_exceeded"},
            "because the context window of the model is full",
        ),
        ([], "length", {"finish_reason": "pause_turn"}, "The provider paused the answer (pause_turn)."),
        ([], "length", {}, "The answer was cut off because the model reached its token limit."),
        ([], "content_filter", {"refusal": "I cannot."}, "The model refused to answer: I cannot."),
        (
            [],
            "content_filter",
            {"finish_reason": "refusal", "refusal": "No"},
            "The model refused to answer (refusal): No",
        ),
        ([], "content_filter", {"finish_reason": "SAFETY"}, "A filter of the provider stopped the answer (SAFETY)."),
        ([], "content_filter", {"finish_reason": "a\nb"}, "The model refused to answer."),
        ([ToolCallPart("write", '{"a', "1")], "length", {}, "token limit. Not run: write."),
        ([ToolCallPart("write", {"a": 1}, "1")], "length", {}, "token limit."),
    ],
)
def test_the_fault_is_explained(parts: Any, reason: str, details: dict[str, str], expected: str) -> None:
    assert expected in explain(answer(*parts, reason=reason, **details))


def test_a_long_explanation_is_cut() -> None:
    assert len(explain(answer(reason="content_filter", refusal="x" * 10_000))) < 600


@pytest.mark.parametrize("arguments", ['{"a": 1}', {"a": 1}, "{}"])
def test_whole_arguments_may_run(arguments: Any) -> None:
    call = ToolCallPart("write", arguments, "1")
    assert why_not_run(answer(call, reason="length"), call) == ""


@pytest.mark.parametrize("arguments", ['{"a": ', '{"a": 1', "", None, {}, "[1]", "1", "nul"])
def test_incomplete_arguments_may_not_run(arguments: Any) -> None:
    call = ToolCallPart("write", arguments, "1")
    assert why_not_run(answer(call, reason="length"), call).startswith("Not run: the answer was cut off")
    assert why_not_run(answer(call, reason="tool_call"), call) == ""


def test_only_the_last_call_may_be_without_arguments_because_of_the_cut() -> None:
    first, last = ToolCallPart("look", None, "1"), ToolCallPart("look", None, "2")
    cut = answer(first, last, reason="length")
    assert [bool(why_not_run(cut, call)) for call in (first, last)] == [False, True]
    followed = answer(first, TextPart("And"), reason="length")
    assert why_not_run(followed, first) == ""


# --- What a request repeats ---------------------------------------------------------------------------------------


def test_a_history_of_whole_answers_is_sent_unchanged() -> None:
    history: list[ModelMessage] = [user("a"), answer(ThinkingPart("t"), TextPart("b"), reason="stop"), user("c")]
    assert sendable(history) is history


def test_a_cut_answer_is_sent_without_the_thinking_at_its_end() -> None:
    thought, text = ThinkingPart("t"), TextPart("b")
    history: list[ModelMessage] = [user("a"), answer(thought, text, ThinkingPart("u"), reason="length"), user("c")]
    sent = sendable(history)
    assert list(sent[1].parts) == [thought, text]
    assert (sent[0], sent[2]) == (history[0], history[2])
    assert len(history[1].parts) == 3, "the conversation itself does not change"


def test_requests_around_an_answer_that_is_left_out_become_one() -> None:
    history: list[ModelMessage] = [
        user("a"),
        answer(ThinkingPart("t"), reason="length"),
        user("continue"),
        answer(TextPart("no"), reason="content_filter"),
        user("please"),
    ]
    [only] = sendable(history)
    assert [part.content for part in only.parts if isinstance(part, UserPromptPart)] == ["a", "continue", "please"]


def test_the_results_of_a_refused_answer_are_left_out_with_it() -> None:
    """IDs of calls are unique within an answer only."""
    earlier, refused = ToolCallPart("look", {"n": 1}, "c"), ToolCallPart("look", {"n": 2}, "c")
    result, not_run = ToolReturnPart("look", "seen", "c"), ToolReturnPart("look", "Not run", "c")
    history: list[ModelMessage] = [
        user("a"),
        answer(earlier, reason="tool_call"),
        ModelRequest([result]),
        answer(refused, reason="content_filter"),
        ModelRequest([not_run, UserPromptPart("b")]),
    ]
    sent = sendable(history)
    assert [part for message in sent for part in message.parts if isinstance(part, ToolReturnPart)] == [result]
    assert [len(message.parts) for message in sent] == [1, 1, 2]
