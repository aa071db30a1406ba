"""Operations are sent in order, together where they wait together, and one by one if the site refuses a batch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from agentops.client import StateConflict
from agentops.durable import LeaseLost, RunInterrupted
from agentops.durable.writer import BATCH_OPS, StepWriter


class Recipient:
    """Answers requests: each operation with its key. Keys decide about the answer."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.commands: list[str] = []
        self.open = asyncio.Event()
        self.open.set()
        self.writer = StepWriter(self.receive, self.commands.extend)

    async def receive(self, ops: Sequence[str]) -> dict[str, Any]:
        batch = [json.loads(op) for op in ops]
        self.batches.append([op.get("key") or op.get("text") for op in batch])
        await self.open.wait()
        keys = [op.get("key") for op in batch]
        if "lost" in keys:
            raise LeaseLost("at epoch 1")
        if "bad" in keys:
            raise StateConflict(409, {"code": "step_mismatch"})
        if "release" in keys:
            keys = keys[: keys.index("release") + 1]
        return {"results": [{"state": key} for key in keys], "commands": ["message"]}

    async def state(self, key: str) -> str:
        return str((await self.writer.submit({"op": "start", "key": key}))["state"])


def run(scene: Callable[[Recipient], Coroutine[Any, Any, Any]]) -> Any:
    async def play() -> Any:
        return await scene(Recipient())

    return asyncio.run(play())


def test_operations_that_wait_together_share_a_request() -> None:
    async def scene(site: Recipient) -> Any:
        states = await asyncio.gather(*map(site.state, "abc"))
        site.open.clear()
        late = [asyncio.create_task(site.state(key)) for key in "de"]
        await asyncio.sleep(0.01)
        late += [asyncio.create_task(site.state(str(number))) for number in range(BATCH_OPS + 1)]
        await asyncio.sleep(0.01)
        site.open.set()
        await asyncio.gather(*late)
        return states, [len(batch) for batch in site.batches], site.commands[:1]

    assert run(scene) == (["a", "b", "c"], [3, 2, BATCH_OPS, 1], ["message"])


def test_a_refused_batch_is_sent_one_by_one() -> None:
    async def scene(site: Recipient) -> Any:
        results = await asyncio.gather(*map(site.state, ["a", "bad", "c"]), return_exceptions=True)
        return [result if isinstance(result, str) else type(result) for result in results]

    assert run(scene) == ["a", StateConflict, "c"]


def test_operations_after_a_release_are_interrupted() -> None:
    async def scene(site: Recipient) -> Any:
        results = await asyncio.gather(*map(site.state, ["a", "release", "c"]), return_exceptions=True)
        return [result if isinstance(result, str) else type(result) for result in results]

    assert run(scene) == ["a", "release", RunInterrupted]


def test_nothing_is_sent_after_the_lease_is_lost() -> None:
    async def scene(site: Recipient) -> Any:
        for key in ("lost", "a"):
            with pytest.raises(LeaseLost):
                await site.state(key)
        return site.batches

    assert run(scene) == [["lost"]]


def test_texts_are_joined_and_come_before_the_end_of_their_step() -> None:
    async def scene(site: Recipient) -> Any:
        for text in ("Hel", "lo"):
            site.writer.add_text("1", text)
        site.writer.add({"op": "log", "text": "logged"})
        site.writer.add_text("1", "!" * 60_001)
        await site.state("1")
        return [text if len(text) < 10 else len(text) for text in site.batches[0]]

    assert run(scene) == ["1", "logged", "1", "1", "1"]


def test_what_is_added_is_sent_soon_and_by_other_threads_too() -> None:
    async def scene(site: Recipient) -> Any:
        await asyncio.to_thread(site.writer.add_text, "1", "from a thread")
        while not site.batches:
            await asyncio.sleep(0.01)
        site.writer.add({"op": "log", "text": "last"})
        await site.writer.flush()
        return site.batches

    assert run(scene) == [["1"], ["last"]]


def test_appended_operations_have_ids_that_a_repetition_keeps() -> None:
    """Without a key of their own, the site could not tell a repetition from another operation."""
    sent: list[Any] = []

    async def receive(ops: Sequence[str]) -> dict[str, Any]:
        sent.extend(json.loads(op) for op in ops)
        return {"results": [{} for _ in ops], "commands": []}

    async def scene() -> None:
        writer = StepWriter(receive, lambda commands: None)
        for _ in range(2):
            writer.add({"op": "log", "type": "x.counted", "payload": {}})
        writer.add({"op": "start", "key": "1"})
        await writer.flush()

    asyncio.run(scene())
    assert ["id" in op for op in sent] == [True, True, False]
    assert sent[0]["id"] != sent[1]["id"]


def test_a_cancelled_caller_does_not_keep_its_operation_from_being_sent() -> None:
    async def scene(site: Recipient) -> Any:
        task = asyncio.create_task(site.state("a"))
        await asyncio.sleep(0)
        task.cancel()
        await site.writer.flush()
        return site.batches, task.cancelled()

    assert run(scene) == ([["a"]], True)
