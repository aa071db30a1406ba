"""Clients of streams, all in one dedicated process: raw sockets, and a timestamp for each read.

Imports nothing from agentops. The data is parsed after the measurement, so that parsing does not delay reads.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
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
AT_ONCE = 50
OPEN_S = 30.0
QUIET_S = 0.4


@dataclass(frozen=True)
class Connect:
    """Open `count` clients of a path."""

    case: str
    port: int
    path: str
    count: int
    #: API keys, distributed evenly over the clients.
    keys: Sequence[str] = ()


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
    #: From the time at which others can read the event.
    waits: array[float] = field(repr=False)

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
    """One client. It does not reconnect: what it misses is lost."""

    def __init__(self, order: Connect, number: int) -> None:
        self._order = order
        self._key = order.keys[number % len(order.keys)] if order.keys else ""
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self.reads: list[tuple[int, bytes]] = []
        self.items: list[tuple[int, int]] = []
        self.let_in = False

    async def open(self) -> None:
        await asyncio.get_running_loop().create_connection(lambda: self, "127.0.0.1", self._order.port)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        lines = [f"GET {self._order.path} HTTP/1.1", "Host: 127.0.0.1", "Accept: text/event-stream"]
        if self._key:
            lines.append(f"Authorization: Bearer {self._key}")
        self._transport.write("\r\n".join([*lines, "", ""]).encode())

    def data_received(self, data: bytes) -> None:
        self.let_in = self.let_in or data.startswith(b"HTTP/1.1 200")
        self.reads.append((time.monotonic_ns(), data))

    def parse(self) -> None:
        reads, self.reads = self.reads, []
        for at, data in reads:
            frames, end, self._rest = (self._rest + data).rpartition(b"\n\n")
            if end:
                self.items += ((int(number), at) for number in NUMBER.findall(frames))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def _opened(readers: list[StreamReader]) -> int:
    for at in range(0, len(readers), AT_ONCE):
        await asyncio.gather(*(reader.open() for reader in readers[at : at + AT_ONCE]))
    until = time.monotonic() + OPEN_S
    while time.monotonic() < until and not all(reader.let_in for reader in readers):
        await asyncio.sleep(0.05)
    return sum(reader.let_in for reader in readers)


async def _collected(readers: list[StreamReader], order: Collect) -> Received:
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
    waits = array("d")
    lost = reordered = repeated = delivered = 0
    for reader in readers:
        items = [(number, at) for number, at in reader.items if number in stamps]
        numbers = [number for number, _ in items]
        delivered += len(numbers)
        lost += len(stamps) - len(set(numbers))
        repeated += len(numbers) - len(set(numbers))
        reordered += sum(after < before for before, after in pairwise(numbers))
        waits.extend((at - stamps[number]) / 1e6 for number, at in items)
        reader.items = []
    return Received(delivered, lost, reordered, repeated, waits)
