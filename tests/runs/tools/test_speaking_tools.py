"""The tools `done` and `ask_user`, which address people."""

from __future__ import annotations

from typing import Any

import pytest

from agentops.base.redaction.partial_texts import mask
from runs.tools.agent_tools import ASK_USER, DONE, Question, question_of
from runs.tools.base import BadArguments, ToolContext
from runs.tools.catalogue import TOOLS

CONTEXT = ToolContext(
    run_id="r",
    call_id="c",
    tool_call_pk="p",
    idempotency_key="p",
    attempt=0,
    epoch=1,
    model_call=1,
    settings={},
    cancelled=lambda: False,
    mask=mask,
)


def test_agents_can_use_both_tools() -> None:
    assert TOOLS.get("done") is DONE
    assert TOOLS.get("ask_user") is ASK_USER
    assert (DONE.ends, DONE.asks, ASK_USER.ends, ASK_USER.asks) == (True, False, False, True)
    assert all(tool.definition.description for tool in (DONE, ASK_USER))


def test_done_returns_its_result() -> None:
    assert DONE.run(CONTEXT, '{"result": "It is 42."}').output == "It is 42."
    assert DONE.run(CONTEXT, {}).is_error


@pytest.mark.parametrize(
    "given", ['{"question": "Which?"}', {"question": "Which?"}, {"question": "Which?", "choices": None}]
)
def test_a_question_is_parsed(given: Any) -> None:
    assert question_of(ASK_USER, CONTEXT, given) == Question("Which?", [])


def test_choices_are_parsed() -> None:
    assert question_of(ASK_USER, CONTEXT, {"question": "Which?", "choices": ["a", "b"]}) == Question(
        "Which?", ["a", "b"]
    )


@pytest.mark.parametrize(
    "given",
    [
        {},
        "",
        "nonsense",
        "[]",
        {"question": ""},
        {"question": " \n"},
        {"question": 5},
        {"question": "x" * 20_001},
        {"question": "Which?", "choices": "a"},
        {"question": "Which?", "choices": [" "]},
        {"question": "Which?", "choices": ["a"] * 21},
        {"question": "Which?", "choices": ["a" * 501]},
        {"question": "Which?", "more": 1},
    ],
    ids=range(13),
)
def test_an_invalid_question_is_refused(given: Any) -> None:
    assert question_of(ASK_USER, CONTEXT, given) is None
    with pytest.raises(BadArguments):
        ASK_USER.execute(CONTEXT, given)


def test_other_tools_have_no_question() -> None:
    assert question_of(DONE, CONTEXT, {"question": "Which?", "result": "x"}) is None
