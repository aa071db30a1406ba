"""Minimal HTTP clients with persistent connections, so that their own cost is small, and several of them at once."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from bench.list_rows import FilledSite
from bench.processes import Program
from bench.report import percentile

T = TypeVar("T")
TIMEOUT_S = 120
#: Servers close idle connections a few seconds later.
IDLE_S = 2


class HttpConnection:
    """One persistent connection to a server on the loopback interface."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket = self._connected()
        self._used_at = time.monotonic()

    def send(self, request: bytes) -> bytes:
        """Return the body of the response. Raise for any status except 200."""
        if time.monotonic() - self._used_at > IDLE_S:
            self._socket.close()
            self._socket = self._connected()
        self._socket.sendall(request)
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._receive()
        head, _, body = received.partition(b"\r\n\r\n")
        status, *lines = head.lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
        while len(body) < length:
            body += self._receive()
        self._used_at = time.monotonic()
        if b" 200" not in status:
            first_line = request.partition(b"\r\n")[0].decode()
            raise RuntimeError(f"{first_line}: {status.decode()} {body[:300].decode(errors='replace')}")
        return body

    def _connected(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self._port), TIMEOUT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _receive(self) -> bytes:
        piece = self._socket.recv(1 << 18)
        if not piece:
            raise RuntimeError("the server closed the connection")
        return piece


class SiteReader:
    """A program that reads the API with a key, and a person who reads pages with a session."""

    def __init__(self, program: Program, filled: FilledSite) -> None:
        self._connection = HttpConnection(program.port)
        head = "Host: 127.0.0.1\r\n"
        self._as_program = f"{head}Accept: application/json\r\nAuthorization: Bearer {filled.read_key}\r\n"
        self._as_person = f"{head}Cookie: sessionid={filled.session}\r\n"

    def get(self, url: str) -> bytes:
        head = self._as_program if url.startswith("/api/") else self._as_person
        return self._connection.send(f"GET {url} HTTP/1.1\r\n{head}\r\n".encode())

    def json(self, url: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.get(url))
        return document

    def took_ms(self, url: str, times: int) -> list[float]:
        """Return the milliseconds of each request except the first two."""
        took = []
        for _ in range(times + 2):
            began = time.perf_counter()
            self.get(url)
            took.append((time.perf_counter() - began) * 1000)
        return took[2:]


class PostClient:
    """Posts bodies to one URL."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        parts = urlsplit(url)
        lines = [f"POST {parts.path} HTTP/1.1", f"Host: {parts.netloc}", *(f"{k}: {v}" for k, v in headers.items())]
        self._head = "\r\n".join(lines).encode()
        self._connection = HttpConnection(parts.port or 80)

    def post(self, body: bytes) -> bytes:
        return self._connection.send(b"%b\r\nContent-Length: %d\r\n\r\n%b" % (self._head, len(body), body))


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
