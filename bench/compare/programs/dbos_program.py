"""DBOS: a workflow whose calls are steps. `serve` executes workflows, the other commands use DBOS's client."""

from __future__ import annotations

import json
import os
import sys
import threading

import task
from dbos import DBOS, DBOSClient, DBOSConfig

URL = os.environ["COMPARE_DATABASE_URL"]
QUEUE, RUN = "agents", "run-1"


@DBOS.step(retries_allowed=True)
def model(number: int) -> str:
    return task.ask_model(number)


@DBOS.step(retries_allowed=True)
def tool(name: str) -> str:
    return task.call_tool(name, f"{DBOS.workflow_id}-{DBOS.step_id}")


@DBOS.workflow()
def agent() -> str:
    model(1)
    for name in task.TOOLS:
        tool(name)
    answer = model(2)
    DBOS.set_event("waits_for", task.APPROVAL)
    if DBOS.recv(task.APPROVAL, timeout_seconds=task.PATIENCE_S):
        tool(task.PUBLISH)
    return answer


def serve() -> None:
    config: DBOSConfig = {"name": "compare", "system_database_url": URL, "log_level": "ERROR"}
    DBOS(config=config)
    DBOS.launch()
    DBOS.register_queue(QUEUE)
    threading.Event().wait()


def state(client: DBOSClient) -> dict[str, object]:
    [workflow] = client.list_workflows(workflow_ids=[RUN])
    return {
        "status": workflow.status,
        "recovery_attempts": workflow.recovery_attempts,
        "steps": [step["function_name"] for step in client.list_workflow_steps(RUN)],
        "waits_for": client.get_event(RUN, "waits_for", timeout_seconds=0),
    }


def main(command: str) -> None:
    if command == "serve":
        serve()
        return
    client = DBOSClient(system_database_url=URL)
    if command == "start":
        client.enqueue({"queue_name": QUEUE, "workflow_name": agent.__qualname__, "workflow_id": RUN})
    elif command == "approve":
        client.send(RUN, True, task.APPROVAL)
    print(json.dumps(state(client)))


main(sys.argv[1])
