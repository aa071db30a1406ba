"""Checkpoints of LangGraph: `AgentopsSaver` over HTTP, in a run and outside of runs, against `AsyncPostgresSaver`.

A graph of a model node and a tool node, which only return messages, with durability "sync". "list" stores the whole
conversation with each checkpoint; "delta", a beta of LangGraph, the differences.
"""

from __future__ import annotations

import asyncio
import operator
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import psycopg
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import END, START, StateGraph

from bench import report, workspace
from bench.processes import served
from bench.report import Row
from bench.workspace import Options, Workspace

#: Characters of each message.
MESSAGE = "The tide comes in twice a day, and a little later each time. " * 10
OWN_TABLES = ("graph_values", "graph_threads")
PEER_TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")


def joined(state: list[Any] | None, writes: list[list[Any]]) -> list[Any]:
    return [*(state or []), *(message for write in writes for message in write)]


class ChatOfLists(TypedDict):
    messages: Annotated[list[dict[str, Any]], operator.add]


class ChatOfDeltas(TypedDict):
    messages: Annotated[list[dict[str, Any]], DeltaChannel(joined, list)]


@dataclass(frozen=True)
class Measured:
    """The cost of one checkpoint."""

    ms: float
    size: float

    @property
    def text(self) -> str:
        return f"{self.ms:.2f} ms, {self.size:,.0f} bytes"


def graph(kind: str, turns: int) -> StateGraph[Any]:
    """Return the graph, not yet compiled. It makes two checkpoints in each turn."""

    def model(state: dict[str, Any]) -> dict[str, Any]:
        return {"messages": [{"role": "assistant", "content": f"{len(state['messages'])} {MESSAGE}"}]}

    def tool(state: dict[str, Any]) -> dict[str, Any]:
        content = f"{len(state['messages'])} {MESSAGE}"
        return {"messages": [{"role": "tool", "tool_call_id": "1", "content": content}]}

    builder = StateGraph(ChatOfDeltas if kind == "delta" else ChatOfLists)
    builder.add_node("model", model)
    builder.add_node("tool", tool)
    builder.add_edge(START, "model")
    builder.add_edge("model", "tool")
    builder.add_conditional_edges("tool", lambda state: END if len(state["messages"]) >= 2 * turns else "model")
    return builder


def run(workspace_: Workspace, options: Options) -> None:
    turns = 10 if options.is_small else 50
    rounds = 2 if options.quick or options.is_small else 5
    report.heading(f"graphs: LangGraph's checkpoints, {2 * turns} in a thread")
    with served(workspace_) as site:
        for kind in ("list", "delta"):
            peer = _peer(workspace_, kind, turns, rounds)
            for what, measured in (
                ("in a run", _in_runs(workspace_, site.url, kind, turns, rounds)),
                ("in a thread", _in_threads(workspace_, site.url, kind, turns, rounds)),
            ):
                ratio = measured.ms / peer.ms
                report.show(Row(f"{kind}: a checkpoint {what}, time", measured.text, f"Postgres {peer.text}", ratio))
                ratio = measured.size / peer.size
                report.show(Row(f"{kind}: a checkpoint {what}, bytes", measured.text, f"Postgres {peer.text}", ratio))


def _peer(workspace_: Workspace, kind: str, turns: int, rounds: int) -> Measured:
    async def execute(url: str) -> float:
        async with AsyncPostgresSaver.from_conn_string(url) as saver:
            await saver.setup()
            compiled = graph(kind, turns).compile(checkpointer=saver)
            return await _timed(lambda: _invoke(compiled, turns), rounds)

    with workspace.database(workspace.sibling_url(workspace_.url, "langgraph")) as url:
        seconds = asyncio.run(execute(url))
        with psycopg.connect(url, autocommit=True) as connection:
            return _measured(connection, PEER_TABLES, seconds, turns, rounds)


def _in_threads(workspace_: Workspace, url: str, kind: str, turns: int, rounds: int) -> Measured:
    from agentops.durable.langgraph import AgentopsSaver

    workspace.truncate_tables(workspace_)
    key = _key()

    async def execute() -> float:
        saver = AgentopsSaver(url=url, key=key)
        compiled = graph(kind, turns).compile(checkpointer=saver)
        seconds = await _timed(lambda: _invoke(compiled, turns), rounds)
        await saver.aclose()
        return seconds

    seconds = asyncio.run(execute())
    with workspace_.connect() as connection:
        return _measured(connection, OWN_TABLES, seconds, turns, rounds)


def _in_runs(workspace_: Workspace, url: str, kind: str, turns: int, rounds: int) -> Measured:
    from agentops.durable import serve
    from agentops.durable.langgraph import durable_function

    workspace.truncate_tables(workspace_)
    key = _key()
    compiled = graph(kind, turns).compile(name="bench")
    times: list[float] = []

    async def execute() -> None:
        stop = asyncio.Event()
        function = durable_function(
            compiled, input=lambda _: {"messages": []}, output=lambda _: None, config={"recursion_limit": 3 * turns}
        )
        execution = function.function

        async def timed(held: Any, prompt: Any) -> Any:
            began = time.perf_counter()
            try:
                return await execution(held, prompt)
            finally:
                times.append(time.perf_counter() - began)
                if len(times) == rounds + 1:
                    stop.set()

        function.function = timed
        serving = asyncio.create_task(serve(function, url=url, key=key, concurrency=1, poll_s=0.2, stop=stop))
        await asyncio.to_thread(_start_runs, rounds + 1)
        await serving

    asyncio.run(execute())
    with workspace_.connect() as connection:
        return _measured(connection, OWN_TABLES, report.mid(times[1:]), turns, rounds + 1)


def _start_runs(count: int) -> None:
    from runs.lifecycle import creation
    from runs.models import Agent

    until = time.monotonic() + 60
    while (agent := Agent.objects.select_related("project").filter(slug="bench").first()) is None:
        if time.monotonic() > until:
            raise RuntimeError("the agent was not registered")
        time.sleep(0.1)
    for _ in range(count):
        creation.create(agent.project, agent, "Go.", by="bench")


def _key() -> str:
    from agentops.accounts.access import SYSTEM
    from agentops.accounts.keys import create_key
    from agentops.accounts.models import Project

    project = Project.objects.first() or Project.objects.create(slug="bench", name="Bench")
    return create_key(project, name="bench", scopes=["work"], actor=SYSTEM).plain


async def _invoke(compiled: Any, turns: int) -> None:
    config = {"configurable": {"thread_id": str(uuid.uuid4())}, "recursion_limit": 3 * turns}
    await compiled.ainvoke({"messages": []}, config, durability="sync")


async def _timed(execute: Callable[[], Any], rounds: int) -> float:
    """Return the median seconds of a round, without the first round."""
    times: list[float] = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        await execute()
        times.append(time.perf_counter() - began)
    return report.mid(times[1:])


def _measured(
    connection: psycopg.Connection[Any], tables: Sequence[str], seconds: float, turns: int, rounds: int
) -> Measured:
    """Return the cost of a checkpoint: of one round in time, of all rounds in bytes of rows and indexes."""
    connection.execute("VACUUM FULL")
    row = connection.execute(
        "SELECT sum(pg_total_relation_size(name::regclass)) FROM unnest(%s::text[]) name", [list(tables)]
    )
    [size] = row.fetchone() or (0,)
    checkpoints = 2 * turns + 1
    return Measured(1000 * seconds / checkpoints, float(size) / checkpoints / rounds)
