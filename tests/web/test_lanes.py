"""The share of the threads that one credential, and one project, may occupy."""

from __future__ import annotations

import asyncio
from typing import Any

from agentops.http.lanes import Lanes

MINE = [(b"authorization", b"Bearer mine")]
OTHER = [(b"host", b"localhost"), (b"authorization", b"Bearer other")]
SECRET = [(b"x-agent-runner-secret", b"secret")]
NOBODY = [(b"cookie", b"sessionid=1")]


async def settle() -> None:
    """Let all tasks go as far as they come without time passing."""
    for _ in range(50):
        await asyncio.sleep(0)


async def passing(lanes: Lanes, requests: list[Any], leave: asyncio.Event) -> list[int]:
    """The numbers of the requests that pass while none leaves."""
    passed: list[int] = []

    async def request(number: int, headers: Any) -> None:
        async with lanes.enter({"headers": headers}):
            passed.append(number)
            await leave.wait()

    tasks = [asyncio.create_task(request(number, headers)) for number, headers in enumerate(requests)]
    await settle()
    first = list(passed)
    leave.set()
    await asyncio.gather(*tasks)
    assert sorted(passed) == list(range(len(requests)))
    return first


def test_a_credential_keeps_no_other_waiting() -> None:
    """Its own requests wait, in their order; those of people are not counted."""
    requests = [MINE] * 5 + [OTHER, SECRET] + [NOBODY] * 3

    async def play() -> list[int]:
        lanes = Lanes(2, 9)
        first = await passing(lanes, requests, asyncio.Event())
        assert await passing(lanes, [MINE] * 3, asyncio.Event()) == [0, 1]
        assert len(lanes) == 0
        return first

    assert asyncio.run(play()) == [0, 1, 5, 6, 7, 8, 9]


def test_a_request_that_is_given_up_leaves_its_place() -> None:
    async def play() -> list[int]:
        lanes = Lanes(1, 9)
        holding = asyncio.Event()

        async def hold() -> None:
            async with lanes.enter({"headers": MINE}):
                await holding.wait()

        tasks = [asyncio.create_task(hold()) for _ in range(3)]
        await settle()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return await passing(lanes, [MINE] * 2, asyncio.Event())

    assert asyncio.run(play()) == [0]


def key(number: int) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", b"Bearer %d" % number)]


def test_a_project_with_many_keys_keeps_no_other_waiting() -> None:
    """As soon as it is known whose keys they are; before that, they share one lane."""
    flood = [key(number) for number in range(9)]

    async def play() -> tuple[list[int], list[int]]:
        lanes = Lanes(2, 3)
        unknown = await passing(lanes, [*flood, OTHER, NOBODY], asyncio.Event())
        for headers, project in [*((headers, "mine") for headers in flood), (OTHER, "other")]:
            async with lanes.enter({"headers": headers}) as credential:
                lanes.learn(credential, project)
        known = await passing(lanes, [*flood, OTHER, OTHER, NOBODY, key(10)], asyncio.Event())
        assert len(lanes) == 0
        return unknown, known

    assert asyncio.run(play()) == ([0, 1, 2, 10], [0, 1, 2, 9, 10, 11, 12])
