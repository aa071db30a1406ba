"""`python -m tests.support.ingest_storm`: the full storm, on a separate PostgreSQL server or on SQLite.

Many clients post to one run while web processes and the database are killed. Prints how long the requests of another
project took. Exits with code 1 if an event was lost, doubled or out of order, or if, with --within, another project
waited for more than this many times its idle value.

With the argument `posters` it is the posters, a separate process with the order on stdin as JSON. Each poster sends its
next batch after the answer to the last one, and sends half of the batches twice. A request without an answer, or with a
429 or 5xx, is repeated until it succeeds. When the time is over, each poster finishes its batch. The posters and the
neighbour import nothing from the product.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count, cycle
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.databases import OwnPostgres


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


@dataclass
class Timings:
    """The start and duration in seconds of answered requests, and the number of failed ones."""

    taken: list[tuple[float, float]] = field(default_factory=list)
    failed: int = 0

    def percentile(self, number: int) -> float:
        """Return a percentile of the durations, in seconds; 0 without requests."""
        seconds = [seconds for _, seconds in self.taken]
        return quantiles(seconds, n=100)[number - 1] if len(seconds) > 1 else 0.0

    def without(self, outages: list[tuple[float, float]]) -> Timings:
        """Return the timings of requests outside outages."""

        def is_met(began: float, seconds: float) -> bool:
            return any(began < end and began + seconds > begin for begin, end in outages)

        return Timings([each for each in self.taken if not is_met(*each)])


@dataclass
class Neighbour:
    """Posts one event, reads its run, pauses, and repeats."""

    ports: list[int]
    headers: dict[str, str]
    run_url: str
    pause_s: float = 0.1
    sent: list[str] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=lambda: count(1))

    @contextmanager
    def measuring(self) -> Iterator[dict[str, Timings]]:
        """Measure until the block ends. Yield the timings by kind of request."""
        timings = {"post": Timings(), "read": Timings()}
        done = threading.Event()
        thread = threading.Thread(target=self._ask, args=[timings, done])
        thread.start()
        try:
            yield timings
        finally:
            done.set()
            thread.join()

    def _ask(self, timings: dict[str, Timings], done: threading.Event) -> None:
        connections = {port: http.client.HTTPConnection("127.0.0.1", port, timeout=10) for port in self.ports}
        ports = cycle(self.ports)
        while not done.wait(self.pause_s):
            connection = connections[next(ports)]
            number = next(self._numbers)
            event = {"runId": "quiet", "type": "x.note", "event_id": f"n{number}", "payload": {"n": number}}
            for kind, method, url, body in (("post", "POST", PATH, event), ("read", "GET", self.run_url, None)):
                began = time.monotonic()
                try:
                    connection.request(
                        method,
                        url,
                        json.dumps(body) if body else None,
                        {**self.headers, "Content-Type": "application/json"} if body else self.headers,
                    )
                    answer = connection.getresponse()
                    answer.read()
                    is_good = answer.status == 200
                except (OSError, http.client.HTTPException):
                    connection.close()
                    is_good = False
                if is_good:
                    timings[kind].taken.append((began, time.monotonic() - began))
                    if kind == "post":
                        self.sent.append(f"n{number}")
                else:
                    timings[kind].failed += 1
        for connection in connections.values():
            connection.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", choices=["postgres", "sqlite"], default="postgres")
    parser.add_argument("--posters", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--size", type=int, default=10, help="events of a batch")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two batches of a poster")
    parser.add_argument("--kill-every", type=float, default=5.0, help="seconds between two kills; 0: none")
    parser.add_argument("--restarts", type=int, default=2, help="restarts of the PostgreSQL server")
    parser.add_argument("--within", type=float, default=0.0, help="the largest ratio of latencies; 0: any")
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="storm-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        cluster = None
        if options.engine == "postgres":
            from tests.support.databases import OwnPostgres

            cluster = OwnPostgres()
            stack.callback(cluster.stop)
            cluster.start()
        _set_up(directory, cluster.url if cluster else f"sqlite:///{directory}/unused.sqlite3")
        return _play(options, directory, cluster, stack)


def _set_up(directory: Path, database_url: str) -> None:
    for name in [name for name in os.environ if name.startswith("AGENTOPS_")]:
        del os.environ[name]
    os.environ |= {
        "AGENTOPS_HOME": str(directory),
        "AGENTOPS_TESTING": "1",
        "DATABASE_URL": database_url,
        "DJANGO_SETTINGS_MODULE": "agentops.settings",
        "REDIS_URL": "",
        "SECRET_KEY": "for-the-storm-and-nothing-else-0123456789-abcdefgh",
    }
    import django

    django.setup()


def _play(options: argparse.Namespace, directory: Path, cluster: OwnPostgres | None, stack: ExitStack) -> int:
    # Needs the configured Django.
    from tests.support.child_processes import ForkServer
    from tests.support.databases import Databases, looking_at
    from tests.support.stage import Stage
    from tests.support.storm import Storm

    fork_server = ForkServer()
    stack.callback(fork_server.close)
    databases = Databases(options.engine, directory)
    name = stack.enter_context(databases.fresh())
    stack.enter_context(looking_at(name))
    stage = Stage(fork_server, databases, name, directory)
    stack.callback(stage.close)
    outcome = Storm(
        stage,
        options.posters,
        options.seconds,
        options.size,
        options.pause,
        kill_every_s=options.kill_every,
        restart_database=cluster.restart if cluster else None,
        restarts=options.restarts if cluster else 0,
    ).play()
    print(outcome.report())
    worst = max(outcome.ratio(kind, 95) for kind in outcome.idle)
    if options.within and worst > options.within:
        print(f"another project waited {worst:.1f} times as long as without load; allowed are {options.within:g}")
        return 1
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["posters"]:
        json.dump(asyncio.run(storm(Order(**json.load(sys.stdin)))), sys.stdout)
    else:
        sys.exit(main())
