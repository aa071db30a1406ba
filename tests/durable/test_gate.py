"""A run is released, or closed, only when none of its methods works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from agentops.durable import RunInterrupted
from agentops.durable.gate import RunGate


def run(scene: Callable[[RunGate], Coroutine[Any, Any, Any]]) -> Any:
    async def play() -> Any:
        return await scene(RunGate())

    return asyncio.run(play())


async def turns(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_wait_begins_when_all_other_methods_have_ended() -> None:
    async def scene(gate: RunGate) -> list[str]:
        happened: list[str] = []
        finish = asyncio.Event()

        async def wait(name: str) -> None:
            async with gate.working():
                await gate.step_aside()
                happened.append(name)

        async def work() -> None:
            async with gate.working():
                await finish.wait()
            async with gate.working():
                happened.append("worked")

        tasks = [asyncio.create_task(each) for each in (wait("first"), work(), wait("second"))]
        await turns()
        assert happened == []
        finish.set()
        await asyncio.gather(*tasks)
        return happened

    assert run(scene) == ["worked", "first", "second"]


def test_closing_lets_working_methods_end_and_no_other_begin() -> None:
    async def scene(gate: RunGate) -> Any:
        happened: list[str] = []
        finish = asyncio.Event()

        async def work() -> None:
            async with gate.working():
                await finish.wait()
                happened.append("ended")
            async with gate.working():
                happened.append("began")

        task = asyncio.create_task(work())
        await turns()
        closing = asyncio.create_task(gate.close(RunInterrupted("ending")))
        await turns()
        assert gate.interruption is None
        finish.set()
        await asyncio.gather(closing, return_exceptions=True)
        [ended] = await asyncio.gather(task, return_exceptions=True)
        return happened, type(ended) in (RunInterrupted, asyncio.CancelledError), str(gate.interruption)

    assert run(scene) == (["ended"], True, "ending")


def test_an_interruption_cancels_what_works_and_is_raised_by_later_methods() -> None:
    async def scene(gate: RunGate) -> None:
        async def work() -> None:
            async with gate.working():
                await asyncio.Event().wait()

        tasks = [asyncio.create_task(work()) for _ in range(2)]
        await turns()
        gate.interrupt(RunInterrupted("stopped"))
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError] * 2
        with pytest.raises(RunInterrupted, match="stopped"):
            async with gate.working():
                pass

    run(scene)


def test_interruptions_are_no_exceptions_that_programs_catch() -> None:
    assert not issubclass(RunInterrupted, Exception)
