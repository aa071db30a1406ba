"""The scripted model server counts what it serves, and each difference from its ledger is a fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import anthropic
import openai
import pytest

from tests.newest.__main__ import BEGIN, END, PAGE
from tests.newest.clients import CLIENTS
from tests.newest.comparison import Report, Row, report_of, table
from tests.newest.model_server import ModelServer, serving
from tests.newest.programs import task

ANSWER = "It is sunny, and it is 12:00."


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    with serving() as models:
        for name in ("ANTHROPIC", "OPENAI"):
            path = "/some/v1" if name == "OPENAI" else "/some"
            monkeypatch.setenv(f"{name}_BASE_URL", f"{models.url}{path}")
            monkeypatch.setenv(f"{name}_API_KEY", "none")
        yield models


@pytest.mark.parametrize(
    ("model", "tokens", "cost"),
    [
        ("claude", (2020, 800, 800, 300, 64, 0), "0.002045"),
        ("gpt", (1220, 800, 0, 0, 96, 32), "0.0004016"),
        ("responses", (1220, 800, 0, 0, 96, 32), "0.0004016"),
    ],
)
def test_the_server_counts_what_it_serves(models: ModelServer, model: str, tokens: tuple[int, ...], cost: str) -> None:
    assert task.ASK[model]() == ANSWER

    report = report_of(models.served("some"))
    assert (report.model_calls, report.tool_calls) == (2, ["get_weather", "get_time"])
    assert (tuple(report.tokens.values()), report.cost) == (tokens, Decimal(cost))
    assert report.system_messages == 1
    assert report.messages == [
        ("user", task.PROMPT),
        ("tool", "sunny"),
        ("tool", "12:00"),
        ("assistant", "Let me look."),
        ("assistant", ANSWER),
    ]


def _streamed_by_anthropic() -> Any:
    question: Any = [{"role": "user", "content": "Go"}]
    with (
        anthropic.Anthropic(max_retries=0) as client,
        client.messages.stream(model=task.CLAUDE, max_tokens=9, messages=question) as stream,
    ):
        return "".join(block.text for block in stream.get_final_message().content)


def _streamed_by_chat_completions() -> Any:
    question: Any = [{"role": "user", "content": "Go"}]
    with openai.OpenAI(max_retries=0) as client:
        chunks = list(client.chat.completions.create(model=task.GPT, messages=question, stream=True))
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def _streamed_by_responses() -> Any:
    with openai.OpenAI(max_retries=0) as client:
        events = list(client.responses.create(model=task.GPT, input="Go", stream=True))
    return events[-1].response.output_text  # type: ignore[union-attr]


@pytest.mark.parametrize("ask", [_streamed_by_anthropic, _streamed_by_chat_completions, _streamed_by_responses])
def test_answers_can_be_streamed(models: ModelServer, ask: Callable[[], Any]) -> None:
    assert ask() == ANSWER
    assert models.served("some")[0].conversation.is_streamed


SERVED = Report(
    model_calls=1,
    messages=[("user", "Go"), ("assistant", "Done.")],
    system_messages=1,
    tool_calls=["bash"],
    tokens={"input": 10, "output": 2, "reasoning": 1},
    cost=Decimal("0.5"),
)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        # Whitespace and order do not matter, and missing subjects are not compared.
        ({"messages": [("assistant", "Done.\n"), ("user", "Go")], "cost": None, "tokens": {}}, None),
        ({"model_calls": 2}, "model calls differ: shown 2, served 1"),
        ({"messages": [("user", "Go")]}, "messages differ: shown {}, served {('assistant', 'Done.'): 1}"),
        ({"tool_calls": ["bash", "bash"]}, "tool calls differ: shown ['bash', 'bash'], served ['bash']"),
        ({"tokens": {"input": 10, "output": 2, "reasoning": 0}}, "reasoning differ: shown 0, served 1"),
        ({"cost": Decimal(1)}, "cost differ: shown 1, served 0.5"),
    ],
)
def test_a_difference_is_a_fault(change: dict[str, Any], fault: str | None) -> None:
    row = Row("Some", "some 1.0", SERVED, replace(SERVED, **change), frozenset())

    assert row.faults == ([] if fault is None else [fault])


def test_what_a_program_does_not_send_is_named_until_it_sends_it() -> None:
    partly = replace(SERVED, tokens={**SERVED.tokens, "reasoning": 0})
    row = Row("Some", "some 1.0", SERVED, partly, frozenset({"reasoning"}))
    assert row.faults == []
    assert table([row]).splitlines()[-1] == "| Some | some 1.0 | 1 | 3 | 1 | 10 + 2 | 0.500000 | reasoning |"

    complete = replace(row, shown=SERVED)
    assert complete.faults == ["reasoning are complete now: remove them from `unsent`"]


def test_the_table_in_the_documentation_has_all_programs() -> None:
    written = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    titles = [line.split(" | ")[0].removeprefix("| ") for line in written.splitlines() if line.startswith("| ")]

    assert titles[2:] == [client.title for client in CLIENTS]
