"""Restate: a workflow whose calls are `run` steps. `serve` is the service endpoint, the other commands use HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import httpx
import hypercorn.asyncio
import restate
import task
from hypercorn.config import Config

RUN = "run-1"
PORT, INGRESS, ADMIN = (os.environ.get(f"COMPARE_{name}", "") for name in ("PORT", "INGRESS", "ADMIN"))
agent = restate.Workflow("agent")


@agent.main()
async def run(ctx: restate.WorkflowContext) -> str:
    await ctx.run_typed("model", task.ask_model, number=1)
    for name in task.TOOLS:
        await ctx.run_typed(name, task.call_tool, name=name, key=str(ctx.uuid()))
    answer = await ctx.run_typed("model", task.ask_model, number=2)
    if await ctx.promise(task.APPROVAL, type_hint=bool).value():
        await ctx.run_typed(task.PUBLISH, task.call_tool, name=task.PUBLISH, key=str(ctx.uuid()))
    return answer


@agent.handler()
async def approve(ctx: restate.WorkflowSharedContext, approved: bool) -> None:
    await ctx.promise(task.APPROVAL, type_hint=bool).resolve(approved)


def state() -> dict[str, object]:
    sql = (
        "SELECT id, status, retry_count, last_failure, completion_result FROM sys_invocation"
        f" WHERE target_service_key = '{RUN}' AND target_handler_name = 'run'"
    )
    answer = httpx.post(f"{ADMIN}/query", json={"query": sql}, headers={"accept": "application/json"}, timeout=30)
    answer.raise_for_status()
    return next(iter(answer.json()["rows"]), {})


async def serve() -> None:
    config = Config()
    config.bind = [f"127.0.0.1:{PORT}"]
    await hypercorn.asyncio.serve(restate.app([agent]), config)


def main(command: str) -> None:
    if command == "serve":
        asyncio.run(serve())
        return
    if command == "start":
        # Registering the endpoint again changes nothing.
        uri = f"http://127.0.0.1:{PORT}"
        httpx.post(f"{ADMIN}/deployments", json={"uri": uri}, timeout=30).raise_for_status()
        httpx.post(f"{INGRESS}/agent/{RUN}/run/send", timeout=30).raise_for_status()
    elif command == "approve":
        httpx.post(f"{INGRESS}/agent/{RUN}/approve/send", json=True, timeout=30).raise_for_status()
    print(json.dumps(state()))


main(sys.argv[1])
