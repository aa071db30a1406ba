"""Temporal: a workflow whose calls are activities. `serve` is the worker, the other commands use Temporal's client.

With "once" as the variant, each tool has one attempt, and the workflow itself asks a person about an attempt that has
not ended in time.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta

import task
from temporalio import activity, exceptions, workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.common import RetryPolicy
from temporalio.service import RPCError
from temporalio.worker import Worker

QUEUE, RUN = "agents", "run-1"
#: The limit in the introductions of Temporal's documentation. It also decides when a lost attempt is noticed.
LIMIT = timedelta(seconds=10)


@activity.defn
def model(number: int) -> str:
    return task.ask_model(number)


@activity.defn
def tool(name: str) -> str:
    info = activity.info()
    return task.call_tool(name, f"{info.workflow_run_id}-{info.activity_id}")


@workflow.defn
class Agent:
    def __init__(self) -> None:
        self.waits_for = ""
        self.replies: dict[str, str] = {}

    @workflow.run
    async def run(self, attempts: int) -> str:
        await workflow.execute_activity(model, 1, start_to_close_timeout=LIMIT)
        for name in task.TOOLS:
            await self.call(name, attempts)
        answer = await workflow.execute_activity(model, 2, start_to_close_timeout=LIMIT)
        if await self.reply(task.APPROVAL) == "approved":
            await self.call(task.PUBLISH, attempts)
        return answer

    async def call(self, name: str, attempts: int) -> str:
        """Execute a tool. `attempts`: 0 for any number."""
        policy = RetryPolicy(maximum_attempts=attempts)
        try:
            return await workflow.execute_activity(tool, name, start_to_close_timeout=LIMIT, retry_policy=policy)
        except exceptions.ActivityError as error:
            if not isinstance(error.cause, exceptions.TimeoutError):
                raise
            return await self.reply(f"outcome of {name}")

    async def reply(self, question: str) -> str:
        """Wait for the signal that answers a question."""
        self.waits_for = question
        await workflow.wait_condition(lambda: question in self.replies)
        self.waits_for = ""
        return self.replies[question]

    @workflow.signal
    def answer(self, question: str, text: str) -> None:
        self.replies[question] = text

    @workflow.query
    def waiting(self) -> str:
        return self.waits_for


async def state(handle: WorkflowHandle) -> dict[str, object]:
    description = await handle.describe()
    pending = [
        {
            "activity": pending.activity_type.name,
            "attempt": pending.attempt,
            "last_failure": pending.last_failure.message,
        }
        for pending in description.raw_description.pending_activities
    ]
    assert description.status is not None
    # A worker answers a query, so send one only if no activity is pending, and with a time limit.
    waits_for = ""
    if not pending:
        with suppress(RPCError):
            waits_for = await handle.query(Agent.waiting, rpc_timeout=timedelta(seconds=3))
    return {"status": description.status.name, "pending": pending, "waits_for": waits_for}


async def main(command: str, variant: str) -> None:
    client = await Client.connect(os.environ["COMPARE_TEMPORAL"])
    if command == "serve":
        with ThreadPoolExecutor() as threads:
            await Worker(
                client, task_queue=QUEUE, workflows=[Agent], activities=[model, tool], activity_executor=threads
            ).run()
        return
    handle = client.get_workflow_handle(RUN)
    if command == "start":
        await client.start_workflow(Agent.run, int(variant == "once"), id=RUN, task_queue=QUEUE)
    elif command == "approve":
        await handle.signal(Agent.answer, args=[task.APPROVAL, "approved"])
    elif command == "resolve":
        await handle.signal(Agent.answer, args=[f"outcome of {task.KILLED}", "done"])
    print(json.dumps(await state(handle)))


# The sandbox of workflows imports this module again.
if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], os.environ.get("COMPARE_VARIANT", "")))
