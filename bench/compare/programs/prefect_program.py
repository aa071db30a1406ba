"""Prefect: a flow of a deployment whose calls are tasks with persisted results. `serve` is its runner.

As Prefect's documentation advises, heartbeats and an automation find runs whose process is gone.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from uuid import UUID

import task as shared
from prefect import flow, get_client, runtime, task
from prefect.automations import Automation
from prefect.client.schemas.objects import StateType
from prefect.deployments import run_deployment
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification
from prefect.flow_runs import resume_flow_run, suspend_flow_run
from prefect.states import Scheduled

NAME = "compare"
LIMIT = timedelta(seconds=90)
ENDS = {f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Cancelled", "Crashed", "Suspended")}


@task(persist_result=True, retries=2)
def model(number: int) -> str:
    return shared.ask_model(number)


@task(persist_result=True, retries=2)
def tool(name: str) -> str:
    return shared.call_tool(name, f"{runtime.flow_run.id}-{name}")


@flow(persist_result=True)
def agent() -> str:
    model(1)
    for name in shared.TOOLS:
        tool(name)
    answer = model(2)
    suspend_flow_run(key=shared.APPROVAL, timeout=shared.PATIENCE_S)
    tool(shared.PUBLISH)
    return answer


def find_lost_runs() -> None:
    beat = "prefect.flow-run.heartbeat"
    trigger = EventTrigger(
        after={beat},
        expect={beat, *ENDS},
        match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=LIMIT,
    )
    crash = ChangeFlowRunState(state=StateType.CRASHED, message="no heartbeat")
    Automation(name="lost runs", trigger=trigger, actions=[crash]).create()


def state() -> dict[str, object]:
    with get_client(sync_client=True) as client:
        [run] = client.read_flow_runs()
        tasks = client.read_task_runs()
    assert run.state is not None
    return {
        "id": str(run.id),
        "status": run.state.name,
        "message": run.state.message,
        "tasks": {each.name: each.state.name for each in tasks if each.state},
    }


def main(command: str) -> None:
    if command == "serve":
        agent.serve(name=NAME, print_starting_message=False)
        return
    if command == "start":
        find_lost_runs()
        run_deployment(f"{agent.name}/{NAME}", timeout=0)
    elif command == "retry":
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(UUID(str(state()["id"])), Scheduled(name="AwaitingRetry"), force=True)
    elif command == "approve":
        resume_flow_run(UUID(str(state()["id"])))
    print(json.dumps(state()))


if __name__ == "__main__":
    main(sys.argv[1])
