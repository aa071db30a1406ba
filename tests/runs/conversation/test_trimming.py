"""Context trimming: messages that a request omits, and that providers accept the remaining conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.usage import RequestUsage

from runs.conversation.trimming import FULL, ROOMY, Context, InvalidWindow, window_of
from runs.providers import base as providers
from runs.providers import messages

History = list[ModelMessage]


@dataclass(frozen=True)
class Turn:
    """An answer of `text` characters with some tool calls, and the user message after it."""

    text: int = 30
    calls: int = 1
    result: int = 300
    reported: int = 0
    user: str = ""


def rows_of(turns: Sequence[Turn]) -> list[ModelMessage]:
    """Return one message per row, as stored."""
    rows: list[ModelMessage] = [messages.request(SystemPromptPart("Be good.")), messages.request(UserPromptPart("Go."))]
    for number, turn in enumerate(turns):
        parts = [ToolCallPart("look", {"n": place}, f"{number}.{place}") for place in range(turn.calls)]
        usage = RequestUsage(input_tokens=turn.reported, output_tokens=turn.text // 3)
        rows.append(ModelResponse(parts=[TextPart("t" * turn.text), *parts], usage=usage))
        rows += [messages.request(ToolReturnPart("look", "r" * turn.result, part.tool_call_id)) for part in parts]
        if turn.user:
            rows.append(messages.request(UserPromptPart(turn.user)))
    return rows


def requests_of(
    rows: Sequence[ModelMessage], window: int | None
) -> list[tuple[list[ModelMessage], list[ModelMessage]]]:
    """Return the history before each model call, and the request sent, as one worker does."""
    context, made = Context(window), []
    history: list[ModelMessage] = []
    for row in rows:
        if isinstance(row, ModelResponse):
            made.append((list(history), list(context.fit(history))))
        messages.join(history, row)
    made.append((list(history), list(context.fit(history))))
    return made


def plain(sent: Sequence[ModelMessage]) -> list[dict[str, Any]]:
    return [messages.dump(message) for message in sent]


def asked(message: ModelMessage) -> list[str]:
    return [part.tool_call_id for part in message.parts if isinstance(part, ToolCallPart)]


def answered(message: ModelMessage) -> list[str]:
    return [part.tool_call_id for part in message.parts if isinstance(part, ToolReturnPart)]


def users(sent: Sequence[ModelMessage]) -> list[Any]:
    return [part.content for m in sent for part in m.parts if isinstance(part, UserPromptPart)]


def assert_valid(sent: Sequence[ModelMessage]) -> None:
    """Check that turns alternate, and that every call is answered once, in order, right after its answer."""
    kinds = [type(message) for message in sent]
    assert kinds == [ModelRequest, ModelResponse] * (len(sent) // 2) + [ModelRequest] * (len(sent) % 2)
    assert not answered(sent[0])
    for answer, results in zip(sent[1::2], sent[2::2], strict=False):
        assert asked(answer) == answered(results)


TURNS = st.lists(
    st.builds(
        Turn,
        text=st.integers(0, 200),
        calls=st.integers(0, 3),
        result=st.integers(0, 900),
        reported=st.one_of(st.just(0), st.integers(1, 2_000)),
        user=st.sampled_from(["", "", "", "And then?", "Do it better."]),
    ),
    max_size=14,
)


def usable(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns so that an answer without calls is followed by a user turn or is the last."""
    return [turn if turn.calls or turn.user else Turn(turn.text, 1, turn.result, turn.reported) for turn in turns]


@given(TURNS, st.integers(20, 2_000))
def test_every_request_stays_valid(turns: list[Turn], window: int) -> None:
    rows = rows_of(usable(turns))
    sent_before = 0
    for history, sent in requests_of(rows, window):
        assert_valid(sent)
        assert plain(sent[:1])[0]["parts"][:2] == plain(history[:1])[0]["parts"][:2], "instructions and first turn"
        assert users(sent)[-1] == users(history)[-1], "what is being worked on"
        assert plain(sent[-2:])[-1]["parts"][-1] == plain(history[-1:])[0]["parts"][-1]
        first = next((m for m in sent if isinstance(m, ModelResponse)), None)
        begins = history.index(first) if first is not None else 0
        assert begins >= sent_before, "what has left does not come back"
        sent_before = begins
    # The request equals the remaining rows, merged by the function that builds requests.
    stay = [row for row in rows if any(part is row.parts[0] for m in sent for part in m.parts)]
    assert plain(messages.merge(stay)) == plain(sent)


@given(TURNS, st.integers(20, 2_000), st.integers(0, 14))
def test_a_worker_that_takes_over_sends_the_same_requests(turns: list[Turn], window: int, place: int) -> None:
    """Nothing is stored about omitted turns: they follow from the conversation alone."""
    made = requests_of(rows_of(usable(turns)), window)
    history, sent = made[min(place, len(made) - 1)]

    assert plain(Context(window).fit(history)) == plain(sent)


def test_without_a_window_everything_is_sent() -> None:
    history = messages.merge(rows_of([Turn(result=100_000)] * 20))
    context = Context(None)

    assert context.fit(history) is history
    assert context.newly_omitted == 0


def test_turns_are_dropped_at_80_percent_and_then_not_for_several_steps() -> None:
    """Each turn is about 150 tokens. The beginning of the request, which providers cache, changes only occasionally."""
    context, left, sizes = Context(2_000), list[int](), list[int]()
    history: list[ModelMessage] = []
    for row in rows_of([Turn(text=60, result=360)] * 40):
        if isinstance(row, ModelResponse):
            context.fit(history)
            left.append(context.newly_omitted)
            sizes.append(context.tokens)
        messages.join(history, row)

    assert max(sizes) < 2_000 * FULL
    trims = [count for count in left if count]
    assert trims
    assert all(count > 1 for count in trims)
    assert len(trims) < len(left) / 2
    assert min(size for size, count in zip(sizes, left, strict=True) if count) <= 2_000 * ROOMY


def test_newly_omitted_turns_are_reported_until_the_answer_is_stored() -> None:
    """The event is committed with the answer, so a second attempt of the same request has to report it too."""
    history = messages.merge(rows_of([Turn(result=900)] * 3))
    context = Context(900)
    context.fit(history)
    first = context.newly_omitted
    context.fit(history)

    assert first == context.newly_omitted > 0
    messages.join(history, ModelResponse(parts=[TextPart("Yes.")]))
    context.fit(history)
    assert context.newly_omitted == 0


def test_token_counts_of_the_provider_override_our_estimate() -> None:
    """Texts of only three characters, but the provider reports 1,900 tokens."""
    turns = [Turn(text=3, result=3)] * 3
    told = [*turns[:-1], Turn(text=3, result=3, reported=1_900)]

    assert len(requests_of(rows_of(turns), 2_000)[-1][1]) == 7
    assert len(requests_of(rows_of(told), 2_000)[-1][1]) == 3


def test_an_old_user_turn_is_dropped_when_there_is_a_newer_one() -> None:
    turns = [Turn(user="Second."), Turn(), Turn(user="Third."), Turn(), Turn(), Turn()]

    sent = requests_of(rows_of(turns), 500)[-1][1]

    assert users(sent) == ["Go.", "Third."]
    assert_valid(sent)


def test_the_last_turn_is_kept_however_large() -> None:
    sent = requests_of(rows_of([Turn(), Turn(result=9_000)]), 100)[-1][1]

    assert asked(sent[1]) == ["1.0"] == answered(sent[2])


def test_pictures_and_thinking_count() -> None:
    picture = BinaryContent(b"\x89PNG", media_type="image/png")
    history: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart(["Look:", picture])])]
    context = Context(100_000)
    context.fit(history)
    with_picture = context.tokens
    history += [ModelResponse(parts=[ThinkingPart("h" * 3_000), TextPart("A cat.")]), ModelRequest(parts=[])]
    context.fit(history)

    assert with_picture > 1_000
    assert context.tokens - with_picture > 1_000


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "8000", [], 10**12])
def test_invalid_windows_are_refused(value: object) -> None:
    with pytest.raises(InvalidWindow):
        window_of({"context_window": value})


@pytest.mark.parametrize(
    ("settings", "window"), [({}, None), ({"context_window": None}, None), ({"context_window": 8_000}, 8_000)]
)
def test_valid_windows(settings: dict[str, Any], window: int | None) -> None:
    assert window_of(settings) == window


@pytest.mark.parametrize("model", ["anthropic:claude-sonnet-4-5", "openai:gpt-5", "openai:no-such", "nobody:x", "bare"])
def test_an_unknown_model_has_no_window(model: str) -> None:
    """Window sizes of a vendor's models come with its optional library; without it, nothing fails."""
    window = providers.get("llm").context_window(model)

    assert window is None or window > 8_000
