"""The limit of a stream: a bare ASGI application with one subscription to Redis. Each frame is created once.

No framework, access check, database or replay. Imports nothing from agentops. Run as a program, it is the publisher.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import pacing
import redis
import redis.asyncio

URL = os.environ["BENCH_REDIS_URL"]
CHANNEL = "agentops-bench:plain"
HEADERS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
PENDING = 5000


class Hub:
    """Puts every frame into the queue of every client."""

    def __init__(self) -> None:
        self.clients: set[asyncio.Queue[bytes]] = set()
        self._task: asyncio.Task[None] | None = None
        self._subscribed = asyncio.Event()

    async def join(self) -> asyncio.Queue[bytes]:
        if self._task is None:
            self._task = asyncio.create_task(self._listen())
        await self._subscribed.wait()
        queue: asyncio.Queue[bytes] = asyncio.Queue(PENDING)
        self.clients.add(queue)
        return queue

    async def _listen(self) -> None:
        subscription = redis.asyncio.Redis.from_url(URL).pubsub()
        await subscription.subscribe(CHANNEL)
        self._subscribed.set()
        async for message in subscription.listen():
            if message["type"] == "message":
                number, _, data = message["data"].partition(b" ")
                frame = b"id: " + number + b"\ndata: " + data + b"\n\n"
                for queue in self.clients:
                    if not queue.full():
                        queue.put_nowait(frame)


hub = Hub()


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    queue = await hub.join()
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": b": open\n\n", "more_body": True})
    pump = asyncio.create_task(_pump(queue, send))
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    finally:
        hub.clients.discard(queue)
        pump.cancel()


async def _pump(queue: asyncio.Queue[bytes], send: Any) -> None:
    while True:
        frames = await queue.get()
        while not queue.empty():
            frames += queue.get_nowait()
        await send({"type": "http.response.body", "body": frames, "more_body": True})


def main() -> None:
    client = redis.Redis.from_url(URL)

    def publish(target: str, numbers: range) -> list[int]:
        with client.pipeline(transaction=False) as pipe:
            for number in numbers:
                pipe.publish(CHANNEL, f"{number} {pacing.document(target, number)}")
            began = time.monotonic_ns()
            pipe.execute()
        return [began] * len(numbers)

    pacing.serve("plain ASGI", publish)


if __name__ == "__main__":
    main()
