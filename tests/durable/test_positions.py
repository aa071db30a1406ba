"""Keys of steps depend on the order in which calls begin, not on how long they take."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentops.durable.positions import Positions, current_step


def test_calls_of_a_function_are_numbered_in_order() -> None:
    positions = Positions()
    positions.enter()

    assert [positions.begin().key for _ in range(3)] == ["1", "2", "3"]
    keys = [positions.begin(call_id=call_id).key for call_id in ("c1", "c2", "c1")]
    assert keys == ["call:c1", "call:c2", "call:c1:2"]
    assert positions.begin().key == "4"


def test_calls_of_branches_have_separate_keys() -> None:
    """The models of two branches may use the same IDs."""

    async def branch(positions: Positions) -> list[str]:
        positions.begin()
        await asyncio.sleep(0)
        return [positions.begin(call_id="c1").key, positions.begin(call_id="c1").key]

    async def function() -> list[list[str]]:
        positions = Positions()
        positions.enter()
        return await asyncio.gather(branch(positions), branch(positions))

    assert asyncio.run(function()) == [["call:1./c1", "call:1./c1:2"], ["call:2./c1", "call:2./c1:2"]]


def test_branches_keep_their_keys_at_any_speed() -> None:
    """Two branches with further calls each, whose first calls take random times."""

    async def branch(positions: Positions, name: str, keys: list[tuple[str, str]]) -> None:
        for _ in range(3):
            keys.append((name, positions.begin().key))
            for _ in range(random.randrange(5)):
                await asyncio.sleep(0)

    async def function() -> list[tuple[str, str]]:
        positions = Positions()
        positions.enter()
        keys = [("main", positions.begin().key)]
        await asyncio.gather(branch(positions, "a", keys), branch(positions, "b", keys))
        return sorted([*keys, ("main", positions.begin().key)])

    expected = [
        ("a", "2"),
        ("a", "2.1"),
        ("a", "2.2"),
        ("b", "3"),
        ("b", "3.1"),
        ("b", "3.2"),
        ("main", "1"),
        ("main", "4"),
    ]
    assert {tuple(asyncio.run(function())) for _ in range(20)} == {tuple(expected)}


def test_branches_of_branches_are_numbered_below_them() -> None:
    async def inner(positions: Positions) -> list[str]:
        return [positions.begin().key, positions.begin().key]

    async def outer(positions: Positions) -> list[str]:
        own = positions.begin().key
        return [own, *(await asyncio.create_task(inner(positions))), positions.begin().key]

    async def function() -> list[str]:
        positions = Positions()
        positions.enter()
        return await asyncio.create_task(outer(positions))

    assert asyncio.run(function()) == ["1", "1.1", "1.1.1", "1.2"]


def test_a_failure_is_handled_when_its_branch_or_one_around_it_continues() -> None:
    async def failing(positions: Positions) -> None:
        positions.failed(positions.begin(), {"type": "ValueError", "message": ""})

    async def other(positions: Positions) -> list[str]:
        return [key for key, _ in positions.begin().handled]

    async def function() -> list[list[str]]:
        positions = Positions()
        positions.enter()
        await asyncio.create_task(failing(positions))
        # Another branch does not see the exception, so it decides nothing about it.
        return [
            await asyncio.create_task(other(positions)),
            [key for key, _ in positions.begin().handled],
            [key for key, _ in positions.begin().handled],
        ]

    assert asyncio.run(function()) == [[], ["1"], []]


def test_calls_inside_a_step_and_in_other_threads_are_refused() -> None:
    positions = Positions()
    positions.enter()

    token = current_step.set("1")
    with pytest.raises(RuntimeError, match="inside the function of a step"):
        positions.begin()
    current_step.reset(token)
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="in the thread of its function"):
        pool.submit(positions.begin).result()
    assert positions.begin().key == "1"
