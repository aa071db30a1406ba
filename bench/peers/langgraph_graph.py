"""The graph that LangGraph is measured with: one model node and one tool node per step."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from langgraph.channels import DeltaChannel
from langgraph.graph import END, START, StateGraph


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
