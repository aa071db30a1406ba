"""Requests in flight: a fixed list of batches, sent by several clients at once, each over its own connection."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import urlsplit

from bench.report import percentile

T = TypeVar("T")
TIMEOUT_S = 120
#: Servers close idle connections a few seconds later.
IDLE_S = 2


@dataclass(frozen=True)
class Sent:
    """The seconds of all batches together, and the milliseconds of each."""

    seconds: float
    took_ms: list[float]

    def percentile(self, share: float) -> float:
        return percentile(self.took_ms, share)


class Clients(Generic[T]):
    """Clients that share the batches. Each function in `senders` is one client with a separate connection."""

    def __init__(self, senders: Sequence[Callable[[T], object]]) -> None:
        self._senders = senders

    def send(self, batches: Sequence[T]) -> Sent:
        """Send all batches, and return the time between the first request and the last answer."""
        todo, lock = iter(batches), threading.Lock()
        barrier = threading.Barrier(len(self._senders) + 1)
        took_ms: list[float] = []
        errors: list[Exception] = []

        def taken() -> Iterator[T]:
            while not errors:
                with lock:
                    batch = next(todo, None)
                if batch is None:
                    return
                yield batch

        def work(sender: Callable[[T], object]) -> None:
            barrier.wait()
            try:
                for batch in taken():
                    began = time.perf_counter()
                    sender(batch)
                    took_ms.append((time.perf_counter() - began) * 1000)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(sender,)) for sender in self._senders]
        for thread in threads:
            thread.start()
        barrier.wait()
        began = time.perf_counter()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return Sent(time.perf_counter() - began, took_ms)


class PostClient:
    """Posts bodies to one URL over one persistent connection, with as little client cost per request as possible."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        parts = urlsplit(url)
        lines = [f"POST {parts.path} HTTP/1.1", f"Host: {parts.netloc}", *(f"{k}: {v}" for k, v in headers.items())]
        self._head = "\r\n".join(lines).encode()
        self._address = (parts.hostname or "", parts.port or 80)
        self._socket = self._connected()
        self._used_at = time.monotonic()

    def post(self, body: bytes) -> bytes:
        """Return the response body. Raise for any status except 200."""
        if time.monotonic() - self._used_at > IDLE_S:
            self._socket.close()
            self._socket = self._connected()
        self._socket.sendall(b"%b\r\nContent-Length: %d\r\n\r\n%b" % (self._head, len(body), body))
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._more()
        head, _, answer = received.partition(b"\r\n\r\n")
        status, *lines = head.lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
        while len(answer) < length:
            answer += self._more()
        if b" 200" not in status:
            raise RuntimeError(f"{status.decode()}: {answer[:300].decode(errors='replace')}")
        self._used_at = time.monotonic()
        return answer

    def _connected(self) -> socket.socket:
        connection = socket.create_connection(self._address, TIMEOUT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _more(self) -> bytes:
        piece = self._socket.recv(1 << 18)
        if not piece:
            raise RuntimeError("the server closed the connection")
        return piece
