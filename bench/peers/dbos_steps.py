"""DBOS: a workflow with one durable step per model call and per tool call."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from dbos import DBOS
from turnstile import Turnstile, arguments

TURNS, URL, WINDOW, RUNS, _ = arguments()
TURNSTILE = Turnstile(WINDOW)
DBOS(config={"name": "bench", "system_database_url": URL, "log_level": "ERROR"})


@DBOS.step()
def ask(number: int) -> dict[str, Any]:
    turn = TURNS[number]
    return {"text": turn["text"], "call_id": turn["call_id"], "tool": turn["tool"], "arguments": turn["arguments"]}


@DBOS.step()
def call(number: int, tool: str, arguments: dict[str, Any]) -> str:
    return TURNS[number]["output"]


@DBOS.workflow()
def converse() -> int:
    for number in range(len(TURNS)):
        TURNSTILE.step()
        answer = ask(number)
        call(number, answer["tool"], answer["arguments"])
    return len(TURNS)


def main() -> None:
    DBOS.launch()
    TURNSTILE.ready(f"dbos {version('dbos')}")
    for _ in range(RUNS):
        converse()
    TURNSTILE.report()
    DBOS.destroy()


main()
