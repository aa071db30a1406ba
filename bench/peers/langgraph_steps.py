"""LangGraph with its PostgresSaver and durability "sync": one model node and one tool node per step.

"list" keeps the conversation as documented (a list with an adding reducer), "delta" in the beta channel that stores
differences.
"""

from __future__ import annotations

import operator
import uuid
from importlib.metadata import version
from typing import Annotated, Any, TypedDict

import psycopg
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import END, START, StateGraph
from psycopg.rows import dict_row
from turnstile import Turnstile, arguments


def joined(state: list[Any] | None, writes: list[list[Any]]) -> list[Any]:
    return [*(state or []), *(message for write in writes for message in write)]


class MessageList(TypedDict):
    messages: Annotated[list[dict[str, Any]], operator.add]


class Delta(TypedDict):
    messages: Annotated[list[dict[str, Any]], DeltaChannel(joined, list)]


def main() -> None:
    turns, url, window, runs, (kind,) = arguments()
    turnstile = Turnstile(window)

    def model(state: dict[str, Any]) -> dict[str, Any]:
        turnstile.step()
        turn = turns[len(state["messages"]) // 2]
        call = {"id": turn["call_id"], "name": turn["tool"], "args": turn["arguments"]}
        return {"messages": [{"role": "assistant", "content": turn["text"], "tool_calls": [call]}]}

    def tool(state: dict[str, Any]) -> dict[str, Any]:
        turn = turns[len(state["messages"]) // 2]
        return {"messages": [{"role": "tool", "tool_call_id": turn["call_id"], "content": turn["output"]}]}

    def onward(state: dict[str, Any]) -> str:
        return END if len(state["messages"]) >= 2 * len(turns) else "model"

    graph = StateGraph(Delta if kind == "delta" else MessageList)
    graph.add_node("model", model)
    graph.add_node("tool", tool)
    graph.add_edge(START, "model")
    graph.add_edge("model", "tool")
    graph.add_conditional_edges("tool", onward)
    with psycopg.connect(url, autocommit=True, prepare_threshold=0, row_factory=dict_row) as connection:
        saver = PostgresSaver(connection)
        saver.setup()
        app = graph.compile(checkpointer=saver)
        turnstile.ready(f"langgraph {version('langgraph')} {kind}")
        for _ in range(runs):
            config = {"configurable": {"thread_id": str(uuid.uuid4())}, "recursion_limit": 2 * len(turns) + 10}
            app.invoke({"messages": []}, config, durability="sync")
        turnstile.report()


main()
