"""LangGraph's local server (`langgraph dev`), which keeps runs in memory: the same graph, used by its client."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from langgraph_program import builder
from langgraph_sdk import get_sync_client

THREAD = "00000000-0000-4000-8000-000000000001"
graph = builder().compile()


def main(command: str) -> None:
    client = get_sync_client(url=os.environ["COMPARE_SERVER"])
    if command == "start":
        client.threads.create(thread_id=THREAD, if_exists="do_nothing")
        client.runs.create(THREAD, "agent", input={"messages": ["go"]}, durability="sync")
    elif command == "retry":
        client.runs.create(THREAD, "agent", input=None, durability="sync")
    elif command == "approve":
        client.runs.create(THREAD, "agent", command={"resume": True}, durability="sync")
    print(json.dumps(state(client)))


def state(client: Any) -> dict[str, object]:
    thread, snapshot = client.threads.get(THREAD), client.threads.get_state(THREAD)
    runs = client.runs.list(THREAD)
    return {"status": thread["status"], "next": snapshot["next"], "runs": [run["status"] for run in runs]}


if __name__ == "__main__":
    main(sys.argv[1])
