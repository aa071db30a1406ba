"""Clients of streams, all in one dedicated process: raw sockets, and a timestamp for each read.

Imports nothing from agentops. The data is parsed after the measurement, so that parsing does not delay reads.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import random
import re
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any, cast

import uvloop

from bench.publishing import Stamps

NUMBER = re.compile(rb'"number": ?(\d+)')
EVENT_ID = re.compile(rb"(?:^|\n)id: ?([^\r\n]+)")
STATUS = re.compile(rb"HTTP/1\.1 (\d+)")
AT_ONCE = 50
OPEN_S = 30.0
QUIET_S = 0.4
AGAIN_S = 0.1


@dataclass(frozen=True)
class Connect:
    """Open `count` clients of a path. With `lives`, they disconnect after these seconds and reconnect."""

    case: str
    port: int
    path: str
    count: int
    #: API keys, distributed evenly over the clients.
    keys: Sequence[str] = ()
    lives: tuple[float, float] | None = None


@dataclass(frozen=True)
class Collect:
    """Return the received events, once all have arrived or `patience` seconds pass without an event."""

    case: str
    stamps: Stamps
    patience: float = 3.0


@dataclass(frozen=True)
class Close:
    case: str


@dataclass(frozen=True)
class Received:
    """The events that the clients received in one window. Times in milliseconds."""

    delivered: int
    lost: int
    reordered: int
    repeated: int
    reconnected: int
    refused: int
    #: From the publisher's call, and from the time at which others can read the event (for agentops: the commit).
    since_call: array[float] = field(repr=False)
    since_public: array[float] = field(repr=False)

    @property
    def faults(self) -> int:
        return self.lost + self.reordered + self.repeated


class Readers:
    """Controls the process of the clients."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def connect(self, order: Connect) -> int:
        """Connect the clients, and return how many were accepted."""
        return int(self._ask(order))

    def collect(self, case: str, stamps: Stamps, patience: float = 3.0) -> Received:
        seen: Received = self._ask(Collect(case, stamps, patience))
        return seen

    def close(self, case: str) -> None:
        self._ask(Close(case))

    def _ask(self, order: Connect | Collect | Close) -> Any:
        self._pipe.send(order)
        return self._pipe.recv()


@contextmanager
def reading() -> Iterator[Readers]:
    context = multiprocessing.get_context("spawn")
    own_end, reader_end = context.Pipe()
    process = context.Process(target=serve, args=(reader_end,), daemon=True)
    process.start()
    reader_end.close()
    try:
        yield Readers(own_end)
    finally:
        own_end.close()
        process.join(5)
        process.kill()


def serve(pipe: Connection) -> None:
    # A pause by the garbage collector would count as the server's delay.
    gc.disable()
    uvloop.run(_serve(pipe))


async def _serve(pipe: Connection) -> None:
    loop = asyncio.get_running_loop()
    crowds: dict[str, list[StreamReader]] = {}
    while True:
        try:
            order = await loop.run_in_executor(None, pipe.recv)
        except EOFError:
            return
        match order:
            case Connect():
                crowds[order.case] = [StreamReader(order, number) for number in range(order.count)]
                pipe.send(await _opened(crowds[order.case]))
            case Collect():
                pipe.send(await _collected(crowds[order.case], order))
            case Close():
                for reader in crowds.pop(order.case):
                    reader.close()
                await asyncio.sleep(0.1)
                pipe.send(None)


class StreamReader(asyncio.Protocol):
    """One client. It reconnects with Last-Event-ID, like a browser."""

    def __init__(self, order: Connect, number: int) -> None:
        self._order = order
        self._key = order.keys[number % len(order.keys)] if order.keys else ""
        self._transport: asyncio.Transport | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._first = True
        self.lives = order.lives
        self._rest = self._last_id = b""
        self.reads: list[tuple[int, bytes]] = []
        self.items: list[tuple[int, int]] = []
        self.let_in = False
        self.reconnected = self.refused = 0

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self, "127.0.0.1", self._order.port)
        except OSError:
            self._again(AGAIN_S)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._first = True
        lines = [f"GET {self._order.path} HTTP/1.1", "Host: 127.0.0.1", "Accept: text/event-stream"]
        if self._key:
            lines.append(f"Authorization: Bearer {self._key}")
        if self._last_id:
            lines.append(f"Last-Event-ID: {self._last_id.decode()}")
        self._transport.write("\r\n".join([*lines, "", ""]).encode())

    def data_received(self, data: bytes) -> None:
        self.reads.append((time.monotonic_ns(), data))
        if self._first:
            self._first = False
            status = STATUS.match(data)
            self.let_in = status is not None and status[1] == b"200"
            self.refused += not self.let_in
            if self.lives and self.let_in and self._transport is not None:
                asyncio.get_running_loop().call_later(random.uniform(*self.lives), self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        # Drop an incomplete frame, as a browser does.
        self.parse()
        self._rest = b""
        if not self._closed:
            self.reconnected += 1
            self._again(0 if self.lives and self.let_in else AGAIN_S)

    def parse(self) -> None:
        reads, self.reads = self.reads, []
        for at, data in reads:
            frames, end, self._rest = (self._rest + data).rpartition(b"\n\n")
            if end:
                self.items += ((int(number), at) for number in NUMBER.findall(frames))
                self._last_id = (EVENT_ID.findall(frames) or [self._last_id])[-1]

    def close(self) -> None:
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._transport is not None:
            self._transport.abort()

    def _again(self, seconds: float) -> None:
        task = asyncio.ensure_future(self._reopen(seconds))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reopen(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.open()


async def _opened(readers: list[StreamReader]) -> int:
    for at in range(0, len(readers), AT_ONCE):
        await asyncio.gather(*(reader.open() for reader in readers[at : at + AT_ONCE]))
    until = time.monotonic() + OPEN_S
    while time.monotonic() < until and not all(reader.let_in for reader in readers):
        await asyncio.sleep(0.05)
    return sum(reader.let_in for reader in readers)


async def _collected(readers: list[StreamReader], order: Collect) -> Received:
    for reader in readers:
        reader.lives = None
    progress = time.monotonic()
    while True:
        await _quiet(readers)
        came = sum(len(reader.items) for reader in readers)
        for reader in readers:
            reader.parse()
        if sum(len(reader.items) for reader in readers) > came:
            progress = time.monotonic()
        if all(len({n for n, _ in reader.items} & order.stamps.keys()) == len(order.stamps) for reader in readers):
            break
        if time.monotonic() > progress + order.patience:
            break
    return _received(readers, order.stamps)


async def _quiet(readers: list[StreamReader]) -> None:
    before = -1
    until = time.monotonic() + OPEN_S
    while time.monotonic() < until and before != (now := sum(len(reader.reads) for reader in readers)):
        before = now
        await asyncio.sleep(QUIET_S)


def _received(readers: list[StreamReader], stamps: Stamps) -> Received:
    since_call, since_public = array("d"), array("d")
    lost = reordered = repeated = delivered = 0
    for reader in readers:
        numbers = [number for number, _ in reader.items if number in stamps]
        delivered += len(numbers)
        lost += len(stamps) - len(set(numbers))
        repeated += len(numbers) - len(set(numbers))
        reordered += sum(after < before for before, after in pairwise(numbers))
        for number, at in reader.items:
            if number in stamps:
                called, public = stamps[number]
                since_call.append((at - called) / 1e6)
                since_public.append((at - public) / 1e6)
        reader.items = []
    reconnected = sum(reader.reconnected for reader in readers)
    refused = sum(reader.refused for reader in readers)
    return Received(delivered, lost, reordered, repeated, reconnected, refused, since_call, since_public)
