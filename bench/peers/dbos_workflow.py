"""The workflow that DBOS is measured with: one durable step per model call and per tool call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dbos import DBOS


def workflow(turns: list[dict[str, Any]], before_step: Callable[[], None]) -> Callable[[], int]:
    """Register the workflow, before DBOS is launched, and return it."""

    @DBOS.step()
    def ask(number: int) -> dict[str, Any]:
        turn = turns[number]
        return {name: turn[name] for name in ("text", "call_id", "tool", "arguments")}

    @DBOS.step()
    def call(number: int, tool: str, arguments: dict[str, Any]) -> str:
        return turns[number]["output"]

    @DBOS.workflow()
    def converse() -> int:
        for number in range(len(turns)):
            before_step()
            answer = ask(number)
            call(number, answer["tool"], answer["arguments"])
        return len(turns)

    return converse
