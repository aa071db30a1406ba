"""Stream clients for synchronous tests. They run on an event loop in a separate thread.

May import the test client and the test's clock. Any thread may read the lists of a follower.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.support.waiting import eventually
from tests.support.web.event_stream import Answer, Follower, Message, ask

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A complete response that is not a stream."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Listeners:
    """All stream clients of one test."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="listeners", daemon=True)
        self._thread.start()
        self._tasks: list[tuple[Follower, asyncio.Task[None]]] = []

    def do(self, coroutine: Coroutine[Any, Any, T], *, within_s: float = 20) -> T:
        """Run a coroutine on the clients' loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(within_s)

    def call(self, function: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(function)

    def open(self, url: str, headers: Mapping[str, str] | None = None, **options: Any) -> Follower:
        """Start a client that follows the stream."""
        follower = Follower(url, dict(headers or {}), **options)
        self.follow(follower)
        return follower

    def follow(self, follower: Follower) -> None:
        async def begin() -> None:
            self._tasks.append((follower, asyncio.get_running_loop().create_task(follower.run())))

        self.do(begin())

    def ask(self, url: str, headers: Mapping[str, str] | None = None, **options: Any) -> Refusal:
        """Return the response. For a stream, the body is left empty, because it does not end."""

        async def whole() -> Refusal:
            answer = await ask(url, headers, **options)
            try:
                return Refusal(answer.status, answer.headers, await _body(answer, options.get("method", "GET")))
            finally:
                await answer.close()

        return self.do(whole())

    def read_to_end(self, url: str, headers: Mapping[str, str] | None = None, **options: Any) -> list[Message]:
        """Return all messages of a stream that ends without a disconnection by the client."""

        async def whole() -> list[Message]:
            answer = await ask(url, headers, **options)
            try:
                assert answer.status == 200, await answer.body()
                return [message async for message in answer.messages()]
            finally:
                await answer.close()

        return self.do(whole())

    def close(self) -> None:
        """End all clients. Fail if a client has received malformed data."""

        async def end() -> None:
            for follower, task in self._tasks:
                follower.close()
                task.cancel()
            await asyncio.gather(*(task for _, task in self._tasks), return_exceptions=True)

        self.do(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        for follower, _ in self._tasks:
            if follower.error is not None:
                raise follower.error


def heard(follower: Follower, ids: list[int], *, within_s: float = 20) -> None:
    """Wait for the last of `ids`. Check that exactly these IDs arrived, once and in order."""
    eventually(
        lambda: follower.error or follower.ids[-1:] == ids[-1:],
        within_s=within_s,
        why=lambda: f"seq {ids[-1]} arrives: {follower.statuses} {follower.ids[-5:]}",
    )
    assert follower.error is None, follower.error
    assert follower.ids == ids


async def _body(answer: Answer, method: str) -> bytes:
    return b"" if method == "HEAD" or answer.streams else await answer.body()
