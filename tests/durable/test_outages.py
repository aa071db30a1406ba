"""A site that cannot be reached for a while: the run is given up, and another process continues it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx

from agentops.durable import DurableRun, LeaseLost, durable
from agentops.durable.codec import Values
from agentops.durable.holding import Claim, HeldRun
from agentops.durable.wire import RunLease, RunRequests, WorkSite


class Site:
    """Answers requests, except those for the pieces of a value: it asks to repeat them after the end of the lease."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.paths.append(request.url.path.removeprefix("/api/work/runs/1"))
        if request.method == "GET":
            problem = {"code": "unavailable", "detail": "Try again later."}
            return httpx.Response(503, json=problem, headers={"Retry-After": "3600"})
        return httpx.Response(200, json={"status": "paused", "results": []})


def test_a_read_that_fails_within_the_lease_gives_the_run_up() -> None:
    ends: list[type[BaseException]] = []
    stored = {"key": "1", "kind": "step", "name": "load", "state": "done", "pieces": 1}
    facts = {"id": "1", "agent": "reads", "version": 1, "prompt": "Go."}

    @durable("reads")
    async def function(run: DurableRun, prompt: str) -> Any:
        try:
            return await run.step("load", str)
        except BaseException as error:
            ends.append(type(error))
            raise

    async def execute(answers: Site) -> HeldRun:
        site = WorkSite("http://site", "aop_key", {"transport": httpx.MockTransport(answers)})
        lease = RunLease(time.monotonic(), 60)
        claim = Claim({"run": facts, "epoch": 1, "steps": [stored]}, lease)
        held = HeldRun(claim, function, RunRequests(site, "1", 1, lease), values=Values(None), grace_s=1)
        await held.execute()
        await site.close()
        return held

    answers = Site()
    held = asyncio.run(execute(answers))

    assert ends == [LeaseLost]
    assert (held.is_lost, answers.paths) == (True, ["/steps/value"])
