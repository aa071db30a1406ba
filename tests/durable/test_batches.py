"""Operations of several runs share a request while an earlier one is in progress."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from agentops.client import ApiError, StateConflict
from agentops.client.errors import ConnectionFailed
from agentops.durable import durable
from agentops.durable.batches import LARGE, PATIENCE_S, RunBatches
from tests.support.durable import DurableSite


class Site:
    """Answers requests about one run and about several, which wait while it is closed."""

    def __init__(self) -> None:
        self.requests: list[list[str]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.error: Exception | None = None
        #: Runs whose operations are not carried out together.
        self.alone: set[str] = set()
        self.batches = RunBatches(self.receive)

    async def receive(self, body: str) -> dict[str, Any]:
        runs = json.loads(body)["runs"]
        self.requests.append([run["id"] for run in runs])
        await self.open.wait()
        if self.error is not None:
            raise self.error
        return {"runs": [{"alone": True} if run["id"] in self.alone else {"results": run["ops"]} for run in runs]}

    async def send(self, run: str, text: str = "") -> Any:
        async def alone() -> dict[str, Any]:
            self.requests.append([f"{run} alone"])
            await self.open.wait()
            if run == "bad":
                raise StateConflict(409, {"code": "lease_lost"})
            return {"results": [run]}

        return await self.batches.send(run, 1, [json.dumps({"run": run, "text": text})], alone)


def run(scene: Callable[[Site], Coroutine[Any, Any, Any]]) -> Any:
    async def play() -> Any:
        return await scene(Site())

    return asyncio.run(play())


def test_one_run_at_a_time_sends_its_own_requests() -> None:
    async def scene(site: Site) -> Any:
        return [await site.send("a"), await site.send("a"), site.requests]

    assert run(scene) == [{"results": ["a"]}, {"results": ["a"]}, [["a alone"], ["a alone"]]]


def test_what_arrives_during_a_request_is_sent_together() -> None:
    async def scene(site: Site) -> Any:
        site.open.clear()
        first = asyncio.create_task(site.send("a"))
        while not site.requests:
            await asyncio.sleep(0)
        others = [asyncio.create_task(site.send(name)) for name in "bcd"]
        await asyncio.sleep(0)
        site.open.set()
        answers = await asyncio.gather(first, *others)
        return site.requests, [answer["results"][0] for answer in answers[1:]]

    requests, answers = run(scene)
    assert requests == [["a alone"], ["b", "c", "d"]]
    assert answers == [{"run": name, "text": ""} for name in "bcd"]


def test_a_request_that_takes_long_does_not_hold_up_the_others() -> None:
    async def scene(site: Site) -> Any:
        site.open.clear()
        tasks = [asyncio.create_task(site.send("a"))]
        await asyncio.sleep(PATIENCE_S / 10)
        tasks += [asyncio.create_task(site.send(name)) for name in "bc"]
        async with asyncio.timeout(30):
            while len(site.requests) < 2:
                await asyncio.sleep(0.01)
        site.open.set()
        await asyncio.gather(*tasks)
        return site.requests

    assert run(scene) == [["a alone"], ["b", "c"]]


def test_operations_not_carried_out_together_are_sent_separately() -> None:
    async def scene(site: Site) -> Any:
        site.alone = {"b", "bad"}
        answers = await asyncio.gather(*map(site.send, ["a", "b", "bad"]), return_exceptions=True)
        return site.requests, [type(answer) for answer in answers]

    requests, answers = run(scene)
    assert requests == [["a", "b", "bad"], ["b alone"], ["bad alone"]]
    assert answers == [dict, dict, StateConflict]


def test_a_refused_request_is_sent_run_by_run() -> None:
    async def scene(site: Site) -> Any:
        site.error = ApiError(422, {"code": "invalid_body"})
        await asyncio.gather(*map(site.send, "ab"))
        site.error = None
        await asyncio.gather(*map(site.send, "ab"))
        return site.requests

    assert run(scene) == [["a", "b"], ["a alone"], ["b alone"], ["a", "b"]]


def test_a_site_that_does_not_know_shared_requests_gets_no_further_ones() -> None:
    async def scene(site: Site) -> Any:
        site.error = ApiError(404, {"code": "not_found"})
        for _ in range(2):
            await asyncio.gather(*map(site.send, "ab"))
        return site.requests

    assert run(scene) == [["a", "b"], *[["a alone"], ["b alone"]] * 2]


def test_all_runs_repeat_a_request_without_an_answer() -> None:
    async def scene(site: Site) -> Any:
        site.error = ConnectionFailed("no answer")
        return await asyncio.gather(*map(site.send, "ab"), return_exceptions=True)

    assert [type(error) for error in run(scene)] == [ConnectionFailed, ConnectionFailed]


def test_large_values_are_sent_separately() -> None:
    async def scene(site: Site) -> Any:
        await asyncio.gather(site.send("a"), site.send("large", "x" * LARGE), site.send("b"))
        return sorted(site.requests)

    assert run(scene) == [["a", "b"], ["large alone"]]


@pytest.mark.every_database
def test_many_runs_at_once_complete(durable_site: DurableSite, monkeypatch: pytest.MonkeyPatch) -> None:
    @durable("counts")
    async def counts(run: Any, prompt: str) -> int:
        total = 0
        for number in range(5):
            total += await run.step("add", int, number, effect="read")
        return total

    sizes: list[int] = []
    plain = RunBatches.next_batch

    def counted(batches: RunBatches) -> Any:
        batch = plain(batches)
        sizes.append(len(batch))
        return batch

    monkeypatch.setattr(RunBatches, "next_batch", counted)
    with durable_site.serving(counts):
        runs = [durable_site.start("counts") for _ in range(8)]
        for each in runs:
            assert durable_site.completes(each).result == "10"

    assert max(sizes) > 1
