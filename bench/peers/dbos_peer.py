"""DBOS: one durable step per model call and per tool call.

With "steps", the steps of one workflow after the other. With "runs", many workflows at once in one process, with one
connection each.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from dbos import DBOS
from turnstile import Turnstile, arguments, rounds


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


def main() -> None:
    turns, url, window, runs, (way,) = arguments()
    title, turnstile = f"dbos {version('dbos')}", Turnstile(window)
    pools = {"sys_db_pool_size": runs, "max_executor_threads": 2 * runs} if way == "runs" else {}
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR", **pools})
    converse = workflow(turns, turnstile.step if way == "steps" else lambda: None)
    DBOS.launch()
    if way == "runs":
        rounds(title, lambda: [handle.get_result() for handle in [DBOS.start_workflow(converse) for _ in range(runs)]])
    else:
        turnstile.ready(title)
        for _ in range(runs):
            converse()
        turnstile.report()
    DBOS.destroy()


main()
