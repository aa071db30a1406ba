"""Readers who disconnect before the response do not leak database connections."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from tests.support.stream_clients import ask
from tests.support.timelines import StreamedRun
from tests.support.timing import eventually
from tests.support.web_server import connections_in_use

COUNT = 150


@pytest.mark.postgres
def test_aborted_requests_return_their_connections(streamed: StreamedRun) -> None:
    dice = random.Random(7)
    paths = [f"/runs/{streamed.run.pk}", f"/p/{streamed.project.slug}/runs", f"/runs/{streamed.run.pk}/head"]
    streams = [streamed.url, streamed.page_url]

    async def leave_early(url: str, after_s: float) -> None:
        with contextlib.suppress(TimeoutError, OSError, asyncio.IncompleteReadError):
            async with asyncio.timeout(after_s):
                answer = await ask(url, streamed.cookie)
                try:
                    async for _ in answer.pieces():
                        pass
                finally:
                    await answer.close()

    async def storm() -> None:
        urls = [
            streamed.web.url + dice.choice(paths) if dice.random() < 0.7 else dice.choice(streams) for _ in range(COUNT)
        ]
        for begin in range(0, COUNT, 10):
            await asyncio.gather(*(leave_early(url, dice.uniform(0.001, 0.08)) for url in urls[begin : begin + 10]))

    streamed.listeners.do(storm(), within_s=60)

    # Views run to their end even if the client is gone; between requests, no connection may be in use.
    eventually(lambda: streamed.web.open_requests == 0, why="the requests that were given up are answered")
    eventually(lambda: connections_in_use() == 0, within_s=10, why=lambda: f"{connections_in_use()} in use")
    assert streamed.listeners.ask(streamed.web.url + paths[0], streamed.cookie).status == 200
