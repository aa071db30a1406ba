"""agentops: a durable function, which `serve` executes.

The other commands use the API of the site. They serve the site's own agent, too.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import httpx
import task

from agentops.durable import Answer, DurableRun, durable, serve_forever

AGENT = os.environ.get("COMPARE_VARIANT") or "remote"
URL, KEY = os.environ["COMPARE_SITE"], os.environ["COMPARE_KEY"]
BASE = f"{URL}/api/projects/{os.environ['COMPARE_PROJECT']}"


async def ask_model(number: int) -> Answer:
    return Answer(text=task.ask_model(number), provider="scripted")


async def call_tool(name: str, idempotency_key: str) -> str:
    return task.call_tool(name, idempotency_key)


@durable("remote")
async def remote(run: DurableRun, prompt: str) -> str:
    await run.model("scripted", ask_model, 1)
    for name in task.TOOLS:
        await run.step(name, call_tool, name)
    answer = await run.model("scripted", ask_model, 2)
    if await run.approve(task.APPROVAL, {"publish": answer.text}):
        await run.step(task.PUBLISH, call_tool, task.PUBLISH)
    return answer.text


def request(method: str, path: str, **options: Any) -> Any:
    headers = {"Authorization": f"Bearer {KEY}"}
    answer = httpx.request(method, f"{BASE}{path}", headers=headers, timeout=30, **options)
    answer.raise_for_status()
    return answer.json()


def waiting() -> list[dict[str, Any]]:
    """Return what waits for a person."""
    rows: list[dict[str, Any]] = request("GET", "/approvals", params={"state": "pending"})["results"]
    return rows


def state() -> dict[str, object]:
    [run] = request("GET", "/agent-runs")["results"]
    asks = [{"kind": row["kind"], "tool": row["tool_name"]} for row in waiting()]
    return {"id": run["id"], "status": run["status"], "reason": run["status_reason"], "needs_you": asks}


def settle(path: str, body: dict[str, str]) -> None:
    [row] = waiting()
    request("POST", f"/agent-runs/{row['run_id']}/{path.format(call=row['call_id'])}", json=body)


def main(command: str) -> None:
    if command == "serve":
        serve_forever(remote, url=URL, key=KEY)
        return
    if command == "start":
        request("POST", "/agent-runs", json={"agent_id": AGENT, "prompt": "Go."})
    elif command == "resolve":
        settle("tool-calls/{call}/resolve", {"choice": "done", "output": "declared by a person"})
    elif command == "approve":
        settle("approvals/{call}", {"decision": "approve"})
    print(json.dumps(state()))


if __name__ == "__main__":
    main(sys.argv[1])
