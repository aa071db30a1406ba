"""The posters, in a separate process: `python -m tests.support.ingest_storm.posters`, with the order on stdin as JSON.

Each poster sends its next batch after the answer to the last one, and sends half of the batches twice. A request
without an answer, or with a 429 or 5xx, is repeated until it succeeds. When the time is over, each poster finishes its
batch. Imports nothing from the product.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

PATH = "/api/internal/agent-events"
#: Timeout of one answer in seconds. A killed server may leave its client without a reset.
TIMEOUT_S = 20.0
#: Longest pause in seconds before a request is repeated.
MOST_PAUSE_S = 1.0


@dataclass
class Order:
    """The instructions for the posters."""

    ports: list[int]
    authorization: str
    run: str
    posters: int
    size: int
    seconds: float
    #: Seconds between the answer to a batch and the next batch.
    pause_s: float = 0.0


@dataclass
class Poster:
    """One poster, with a persistent connection."""

    number: int
    order: Order
    counts: Counter[str]
    #: Event ID → sequence number of each acknowledged event.
    stored: dict[str, int]
    wrong: list[str]
    dice: random.Random = field(init=False)
    _streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    _port: int = 0

    def __post_init__(self) -> None:
        self.dice = random.Random(self.number)

    async def work(self, until: float) -> None:
        batch = 0
        while time.monotonic() < until:
            name = f"{self.number}.{batch}"
            body = json.dumps({"events": list(events(self.order.run, name, self.order.size))}).encode()
            self.take(name, await self.deliver(body), is_repeat=False)
            if self.dice.random() < 0.5:
                self.take(name, await self.deliver(body), is_repeat=True)
            batch += 1
            await asyncio.sleep(self.order.pause_s)
        self.counts["batches"] += batch
        self.hang_up()

    async def deliver(self, body: bytes) -> dict[str, Any]:
        """Send a batch until it is answered."""
        pause = 0.05
        while True:
            try:
                status, answer = await asyncio.wait_for(self.post(body), TIMEOUT_S)
            except (TimeoutError, OSError, asyncio.IncompleteReadError, ValueError):
                self.hang_up()
                self.counts["unanswered"] += 1
            else:
                self.counts[str(status)] += 1
                if status == 200:
                    return dict(json.loads(answer))
                if status != 429 and status < 500:
                    self.wrong.append(f"{status}: {answer[:300]!r}")
            await asyncio.sleep(pause * self.dice.random())
            pause = min(2 * pause, MOST_PAUSE_S)

    async def post(self, body: bytes) -> tuple[int, bytes]:
        if self._streams is None:
            # Use the other port after each failure.
            self._port += 1
            port = self.order.ports[(self.number + self._port) % len(self.order.ports)]
            self._streams = await asyncio.open_connection("127.0.0.1", port)
        reader, writer = self._streams
        head = (
            f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {self.order.authorization}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        status = int(answer.split(b" ", 2)[1])
        content = await reader.readexactly(int(answer.split(b"content-length: ")[1].split(b"\r\n")[0]))
        if b"connection: close" in answer:
            self.hang_up()
        return status, content

    def hang_up(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None

    def take(self, name: str, answer: dict[str, Any], *, is_repeat: bool) -> None:
        """Record the stored events. A repeated batch must get the same sequence numbers."""
        for result in answer["results"]:
            event_id, seq = result["event_id"], result["seq"]
            if result["status"] == "rejected" or not seq:
                self.wrong.append(f"batch {name}: {result}")
            elif self.stored.setdefault(event_id, seq) != seq or (is_repeat and not result["duplicate"]):
                self.wrong.append(f"batch {name}, sent again: {result}, first under {self.stored[event_id]}")
            self.counts["duplicate" if result["duplicate"] else "accepted"] += 1


def events(run: str, name: str, size: int) -> Any:
    """Yield a turn with a tool call, its result, and notes."""
    calls = [{"id": name, "name": "read", "arguments": {"path": name}}]
    kinds: list[tuple[str, Any]] = [
        ("llm.turn.end", {"text": name, "toolCalls": calls, "usage": {"inputTokens": 3, "outputTokens": 2}}),
        ("tool.end", {"callId": name, "output": f"the content of {name}"}),
        *(("x.note", {"n": number, "text": "A line of a log, as runners write them."}) for number in range(size - 2)),
    ]
    for index, (type_, payload) in enumerate(kinds[:size]):
        yield {"runId": run, "type": type_, "payload": payload, "event_id": f"{name}.{index}"}


async def storm(order: Order) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    stored: dict[str, int] = {}
    wrong: list[str] = []
    until = time.monotonic() + order.seconds
    posters = [Poster(number, order, counts, stored, wrong) for number in range(order.posters)]
    await asyncio.gather(*(poster.work(until) for poster in posters))
    return {"counts": counts, "stored": stored, "wrong": wrong[:20]}


if __name__ == "__main__":
    json.dump(asyncio.run(storm(Order(**json.load(sys.stdin)))), sys.stdout)
