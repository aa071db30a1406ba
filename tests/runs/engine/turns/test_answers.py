"""Malformed answers of a model: each has a documented outcome, and the run continues."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart, ToolReturnPart

from runs.conversation.call_ids import MAX_KEPT
from runs.engine.turns.open_call import MAX_CALLS
from runs.models import AgentRun, AgentRunToolCall
from runs.providers.base import ModelCall
from runs.statuses import RunStatus, ToolStatus
from tests.support.engine import MakeScripted
from tests.support.factories import drive
from tests.support.run_checks import check, events
from tests.support.scripted_model import Move, Play, ScriptedStream

pytestmark = pytest.mark.django_db(transaction=True)
Words = Callable[[], list[str]]


def asking(*parts: ToolCallPart) -> Play:
    def play(call: ModelCall) -> Iterable[Move]:
        yield from parts if call.number == 1 else ["Done."]

    return play


def calls_of(run: AgentRun) -> list[AgentRunToolCall]:
    return list(AgentRunToolCall.objects.filter(run=run).order_by("id"))


def told(call: AgentRunToolCall) -> str:
    assert call.result_message is not None
    return str(call.result_message.content["parts"][0]["content"])


def test_a_call_of_a_missing_tool_is_an_error(scripted: MakeScripted, effects: Words) -> None:
    """The call gets a result, and the other calls of the turn run."""
    run = drive(scripted(asking(ToolCallPart("rm_rf", {"n": 1}, "a"), ToolCallPart("ledger_read", {"n": 2}, "b"))))

    assert run.status == RunStatus.COMPLETED
    wrong, right = calls_of(run)
    assert (wrong.status, right.status) == (ToolStatus.ERROR, ToolStatus.COMPLETED)
    assert "rm_rf" in told(wrong)
    assert effects() == ["b"]
    check(run)


@pytest.mark.parametrize(
    "arguments",
    [
        '{"n": ',
        '{"n": 1} trailing',
        "[1]",
        "null",
        '{"n": "many"}',
        "{}",
        {"n": [1]},
        {"m": 1},
        "",
        None,
        '{"n": 1e400}',
        '{"n": NaN}',
        '{"n": -Infinity}',
        '{"n": ' + "9" * 5_000 + "}",
        '{"n": ' + "[" * 100_000 + "}",
        '{"n": 1, "m": "' + "x" * 5_000_000 + '"}',
        '{"n": "\\ud800"}',
        '{"n": "\\u0000"}',
        "\x00",
        '{"n": 1, "n": "two"}',
    ],
    ids=lambda value: repr(value)[:24],
)
def test_invalid_arguments_are_an_error(scripted: MakeScripted, effects: Words, arguments: Any) -> None:
    """No tool runs, and the model receives the reason."""
    run = drive(scripted(asking(ToolCallPart("ledger_once", arguments, "a"))))

    assert run.status == RunStatus.COMPLETED
    [call] = calls_of(run)
    assert call.status == ToolStatus.ERROR
    assert told(call).startswith("Nothing was run.")
    assert effects() == []
    check(run)


def test_calls_over_the_limit_of_an_answer_are_errors(scripted: MakeScripted, effects: Words) -> None:
    parts = [ToolCallPart("ledger_read", {"n": n}, f"c{n}") for n in range(MAX_CALLS + 6)]

    run = drive(scripted(asking(*parts)))

    assert run.status == RunStatus.COMPLETED
    calls = calls_of(run)
    assert [call.status for call in calls] == [ToolStatus.COMPLETED] * MAX_CALLS + [ToolStatus.ERROR] * 6
    assert effects() == [f"c{n}" for n in range(MAX_CALLS)]
    assert str(MAX_CALLS) in told(calls[-1])
    check(run)


@pytest.mark.slow
def test_ten_thousand_calls_in_one_answer_are_mostly_dropped(scripted: MakeScripted, effects: Words) -> None:
    """Some get a result, so that the model learns of the limit; storing and resending the rest would be useless."""
    histories: list[list[ModelMessage]] = []

    def play(call: ModelCall) -> Iterable[Move]:
        histories.append(list(call.history))
        yield "All at once. "
        yield from (ToolCallPart("ledger_read", {"n": n}, f"c{n}") for n in range(10_000 if call.number == 1 else 0))

    run = drive(scripted(play))

    assert run.status == RunStatus.COMPLETED
    assert effects() == [f"c{n}" for n in range(MAX_CALLS)]
    assert [call.call_id for call in calls_of(run)] == [f"c{n}" for n in range(MAX_KEPT)]
    [error] = [event.payload for event in events(run) if event.type == "error"]
    assert (error["error_type"], error["context"]) == ("too_many_calls", "llm_complete")
    assert "10,000 tool calls" in error["error"]
    *_, asked, answered = histories[1]
    assert isinstance(asked, ModelResponse)
    assert [part.tool_call_id for part in asked.tool_calls] == [
        part.tool_call_id for part in answered.parts if isinstance(part, ToolReturnPart)
    ]
    check(run)


def test_an_empty_answer_completes_the_run(scripted: MakeScripted) -> None:
    run = drive(scripted(lambda _: []))

    assert (run.status, run.result, run.step_count) == (RunStatus.COMPLETED, "", 1)
    check(run)


def test_an_answer_of_whitespace_completes_the_run(scripted: MakeScripted) -> None:
    run = drive(scripted(lambda _: ["  \n"]))

    assert run.status == RunStatus.COMPLETED
    check(run)


def test_duplicate_call_ids_in_an_answer_are_made_unique(scripted: MakeScripted, effects: Words) -> None:
    parts = [ToolCallPart("ledger_read", {"n": n}, "same") for n in range(3)]

    run = drive(scripted(asking(*parts)))

    assert run.status == RunStatus.COMPLETED
    calls = calls_of(run)
    assert len({call.call_id for call in calls}) == 3
    assert [told(call) for call in calls] == ["did 0", "did 1", "did 2"]
    assert effects() == [call.call_id for call in calls]
    check(run)


def test_call_ids_repeated_in_a_later_turn_are_made_unique(scripted: MakeScripted) -> None:
    def play(call: ModelCall) -> Iterable[Move]:
        yield ToolCallPart("ledger_idempotent", {"n": call.number}, "same") if call.number < 4 else "Done."

    run = drive(scripted(play))

    assert run.status == RunStatus.COMPLETED
    calls = calls_of(run)
    assert [told(call) for call in calls] == ["did 1", "did 2", "did 3"]
    assert len({call.idempotency_key for call in calls}) == 3


@pytest.mark.parametrize(
    ("name", "call_id"),
    [
        ("ledger_read", "x" * 257),
        ("ledger_read", "x" * 5_000),
        ("ledger_read", "with\x00nul"),
        ("ledger_read", "with\ud800surrogate"),
        ("ledger_read", ""),
        ("t" * 300, "a"),
        ("with\x00nul", "a"),
        ("with\udfffsurrogate", "a"),
        ("", "a"),
    ],
    ids=[
        "long id",
        "very long id",
        "nul in id",
        "surrogate in id",
        "no id",
        "long name",
        "nul in name",
        "surrogate in name",
        "no name",
    ],
)
def test_names_and_ids_that_no_column_accepts_are_cleaned(scripted: MakeScripted, name: str, call_id: str) -> None:
    parts = [ToolCallPart(name, {"n": 1}, call_id), ToolCallPart(name, {"n": 2}, call_id)]

    run = drive(scripted(asking(*parts)))

    assert run.status == RunStatus.COMPLETED, run.error_message
    calls = calls_of(run)
    expected = ToolStatus.COMPLETED if name == "ledger_read" else ToolStatus.ERROR
    assert [call.status for call in calls] == [expected, expected]
    check(run)


@pytest.mark.parametrize("text", ["nul \x00 in it", "half \ud83d of it", "both \x00\udc00"])
def test_text_that_no_column_accepts_is_cleaned(scripted: MakeScripted, text: str) -> None:
    run = drive(scripted(lambda _: [text]))

    assert run.status == RunStatus.COMPLETED, run.error_message
    assert run.result == text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode().replace("?", "\ufffd")
    check(run)


def test_arguments_that_no_column_accepts_are_cleaned(scripted: MakeScripted) -> None:
    run = drive(scripted(asking(ToolCallPart("ledger_read", {"n": 1, "x\x00": "\ud800"}, "a"))))

    assert run.status == RunStatus.COMPLETED, run.error_message
    check(run)


def test_a_model_name_that_no_column_accepts_is_cleaned(
    scripted: MakeScripted, effects: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name comes from the provider and is as untrusted as the answer."""
    monkeypatch.setattr(ScriptedStream, "model_name", "odd\0name\ud800")
    run = drive(scripted(asking(ToolCallPart("ledger_read", {"n": 1}, "a"))))

    assert run.status == RunStatus.COMPLETED
    assert effects() == ["a"]
    assert set(run.turn_usages.values_list("model", flat=True)) == {"odd\ufffdname\ufffd"}
    assert {m.model for m in run.messages.filter(role="assistant")} == {"odd\ufffdname\ufffd"}
    check(run)


def test_a_secret_used_as_a_tool_name_is_not_logged(scripted: MakeScripted) -> None:
    secret = "ghp_" + "a1B2c3D4e5F6" * 3
    run = drive(scripted(asking(ToolCallPart(secret, {"n": 1}, "a"))))

    [end] = [event for event in events(run) if event.type == "tool.end"]
    assert secret not in str(end.payload)
    check(run)
