"""LangGraph with durability "sync": a graph of one model node and one tool node per step.

With "steps", the steps of one run after the other, stored by PostgresSaver. With "runs", many runs at once on an event
loop. Each run has an AsyncPostgresSaver and a connection, because a saver executes one statement at a time.
"""

from __future__ import annotations

import asyncio
import operator
import uuid
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any, TypedDict

import psycopg
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import END, START, StateGraph
from psycopg.rows import dict_row
from turnstile import Turnstile, arguments, rounds

CONNECTION: dict[str, Any] = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}


def joined(state: list[Any] | None, writes: list[list[Any]]) -> list[Any]:
    return [*(state or []), *(message for write in writes for message in write)]


class MessageList(TypedDict):
    messages: Annotated[list[dict[str, Any]], operator.add]


class Delta(TypedDict):
    messages: Annotated[list[dict[str, Any]], DeltaChannel(joined, list)]


def graph(turns: list[dict[str, Any]], kind: str, before_step: Callable[[], None]) -> StateGraph[Any]:
    """Return the graph, not yet compiled.

    "list" keeps the conversation as documented (a list with an adding reducer). "delta" uses the beta channel, which
    stores differences.
    """

    def model(state: dict[str, Any]) -> dict[str, Any]:
        before_step()
        turn = turns[len(state["messages"]) // 2]
        call = {"id": turn["call_id"], "name": turn["tool"], "args": turn["arguments"]}
        return {"messages": [{"role": "assistant", "content": turn["text"], "tool_calls": [call]}]}

    def tool(state: dict[str, Any]) -> dict[str, Any]:
        turn = turns[len(state["messages"]) // 2]
        return {"messages": [{"role": "tool", "tool_call_id": turn["call_id"], "content": turn["output"]}]}

    def onward(state: dict[str, Any]) -> str:
        return END if len(state["messages"]) >= 2 * len(turns) else "model"

    made = StateGraph(Delta if kind == "delta" else MessageList)
    made.add_node("model", model)
    made.add_node("tool", tool)
    made.add_edge(START, "model")
    made.add_edge("model", "tool")
    made.add_conditional_edges("tool", onward)
    return made


def main() -> None:
    turns, url, window, runs, (way, kind) = arguments()
    title = f"langgraph {version('langgraph')} {kind}"
    if way == "runs":
        run_at_once(title, turns, url, runs, kind)
        return
    turnstile = Turnstile(window)
    with psycopg.connect(url, **CONNECTION) as connection:
        saver = PostgresSaver(connection)
        saver.setup()
        app = graph(turns, kind, turnstile.step).compile(checkpointer=saver)
        turnstile.ready(title)
        for _ in range(runs):
            app.invoke({"messages": []}, config(turns), durability="sync")
        turnstile.report()


def run_at_once(title: str, turns: list[dict[str, Any]], url: str, runs: int, kind: str) -> None:
    async def compiled() -> list[Any]:
        savers = [AsyncPostgresSaver(await psycopg.AsyncConnection.connect(url, **CONNECTION)) for _ in range(runs)]
        await savers[0].setup()
        return [graph(turns, kind, lambda: None).compile(checkpointer=saver) for saver in savers]

    async def all_of_them(apps: list[Any]) -> None:
        await asyncio.gather(*(app.ainvoke({"messages": []}, config(turns), durability="sync") for app in apps))

    with asyncio.Runner() as runner:
        apps = runner.run(compiled())
        rounds(title, lambda: runner.run(all_of_them(apps)))


def config(turns: list[dict[str, Any]]) -> dict[str, Any]:
    return {"configurable": {"thread_id": str(uuid.uuid4())}, "recursion_limit": 2 * len(turns) + 10}


main()
