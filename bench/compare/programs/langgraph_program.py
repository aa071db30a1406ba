"""LangGraph as a library: a graph whose calls are nodes, with durability "sync" and the saver for PostgreSQL.

A graph has no process that looks for interrupted threads: `serve` continues the thread that it finds, or waits.
"""

from __future__ import annotations

import json
import operator
import os
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Any, TypedDict

import task
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command, interrupt

CONFIG: Any = {"configurable": {"thread_id": "run-1"}}


class State(TypedDict):
    messages: Annotated[list[str], operator.add]


def model(number: int) -> Callable[[State], State]:
    return lambda state: {"messages": [task.ask_model(number)]}


def tool(name: str) -> Callable[[State, Runtime[None]], State]:
    def node(state: State, runtime: Runtime[None]) -> State:
        assert runtime.execution_info is not None
        return {"messages": [task.call_tool(name, runtime.execution_info.task_id)]}

    return node


def ask_person(state: State) -> Command[str]:
    return Command(goto=task.PUBLISH if interrupt({"wait": task.APPROVAL}) else END)


def builder() -> StateGraph[State]:
    graph = StateGraph(State)
    graph.add_node("model_1", model(1))
    for name in task.TOOLS:
        graph.add_node(name, tool(name))
    graph.add_node("model_2", model(2))
    graph.add_node(task.APPROVAL, ask_person, destinations=(task.PUBLISH, END))
    graph.add_node(task.PUBLISH, tool(task.PUBLISH))
    way = [START, "model_1", *task.TOOLS, "model_2", task.APPROVAL]
    for source, target in pairwise(way):
        graph.add_edge(source, target)
    graph.add_edge(task.PUBLISH, END)
    return graph


def state(graph: CompiledStateGraph[Any, Any, Any, Any]) -> dict[str, object]:
    snapshot = graph.get_state(CONFIG)
    return {"next": snapshot.next, "interrupts": [one.value for one in snapshot.interrupts]}


def main(command: str) -> None:
    # The local server needs the graph, but not this package.
    from langgraph.checkpoint.postgres import PostgresSaver

    with PostgresSaver.from_conn_string(os.environ["COMPARE_DATABASE_URL"]) as saver:
        if command == "serve":
            saver.setup()
        graph = builder().compile(checkpointer=saver)
        if command == "serve":
            serve(graph)
        elif command == "approve":
            graph.invoke(Command(resume=True), CONFIG, durability="sync")
        print(json.dumps(state(graph)))


def serve(graph: CompiledStateGraph[Any, Any, Any, Any]) -> None:
    """Execute the thread, or continue it where it was interrupted by a crash, unless it waits for a person."""
    snapshot = graph.get_state(CONFIG)
    if not snapshot.interrupts:
        graph.invoke(None if snapshot.next else {"messages": ["go"]}, CONFIG, durability="sync")
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1])
