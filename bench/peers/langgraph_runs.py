"""LangGraph with its AsyncPostgresSaver and durability "sync": many runs at once on an event loop, with one connection
each.

The synchronous saver with a thread for each run is slower.
"""

from __future__ import annotations

import asyncio
import uuid
from importlib.metadata import version
from typing import Any

from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph_graph import graph
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool
from turnstile import arguments, rounds


def main() -> None:
    turns, url, _, runs, (kind,) = arguments()

    async def opened() -> Any:
        options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        pool = AsyncConnectionPool(url, min_size=runs, max_size=runs, kwargs=options, open=False)
        await pool.open(wait=True)
        saver = AsyncPostgresSaver(pool)
        await saver.setup()
        return graph(turns, kind, lambda: None).compile(checkpointer=saver)

    async def converse(app: Any) -> None:
        config = {"configurable": {"thread_id": str(uuid.uuid4())}, "recursion_limit": 2 * len(turns) + 10}
        await app.ainvoke({"messages": []}, config, durability="sync")

    async def all_of_them(app: Any) -> None:
        await asyncio.gather(*(converse(app) for _ in range(runs)))

    with asyncio.Runner() as runner:
        app = runner.run(opened())
        rounds(f"langgraph {version('langgraph')} {kind}", lambda: runner.run(all_of_them(app)))


main()
