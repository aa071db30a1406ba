"""LangGraph with its PostgresSaver and durability "sync": the steps of one run after the other."""

from __future__ import annotations

import uuid
from importlib.metadata import version

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph_graph import graph
from psycopg.rows import dict_row
from turnstile import Turnstile, arguments


def main() -> None:
    turns, url, window, runs, (kind,) = arguments()
    turnstile = Turnstile(window)
    with psycopg.connect(url, autocommit=True, prepare_threshold=0, row_factory=dict_row) as connection:
        saver = PostgresSaver(connection)
        saver.setup()
        app = graph(turns, kind, turnstile.step).compile(checkpointer=saver)
        turnstile.ready(f"langgraph {version('langgraph')} {kind}")
        for _ in range(runs):
            config = {"configurable": {"thread_id": str(uuid.uuid4())}, "recursion_limit": 2 * len(turns) + 10}
            app.invoke({"messages": []}, config, durability="sync")
        turnstile.report()


main()
