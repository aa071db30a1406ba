"""Slow clients on plain sockets, and an ordinary client that requests a page."""

from __future__ import annotations

import re
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import httpx

#: With a cookie: without one the server does not read the form's body.
HEAD = b"\r\n".join([
    b"POST /login HTTP/1.1", b"Host: localhost", b"Cookie: csrftoken=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    b"Content-Type: application/x-www-form-urlencoded", b"",
])  # fmt: skip
#: Kind → the bytes sent at the start, and the bytes sent repeatedly.
KINDS: dict[str, tuple[bytes, bytes]] = {
    "headers": (b"GET /login HTTP/1.1\r\nHost: localhost\r\nX-Slow: ", b"x"),
    "body": (HEAD + b"Content-Length: 100000\r\n\r\n", b"x"),
    "chunked": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "silent": (b"", b""),
    "idle": (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\r\n"),
}
#: Kind → the statuses that the client receives before the server closes. A client that began no request gets none. The
#: bytes from an idle client between two requests may count as the start of a request.
ENDS = {"headers": [(408,)], "body": [(408,)], "chunked": [(408,)], "silent": [()], "idle": [(200,), (200, 408)]}
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


@dataclass
class SlowClient:
    kind: str
    wire: socket.socket
    answer: bytes = b""
    is_closed: bool = False

    def statuses(self) -> tuple[int, ...]:
        return tuple(int(status) for status in STATUS.findall(self.answer))

    def go_on(self) -> None:
        """Receive what has arrived, and send the next bytes."""
        with suppress(BlockingIOError):
            try:
                while piece := self.wire.recv(65_536):
                    self.answer += piece
                self.is_closed = True
            except ConnectionError:
                self.is_closed = True
        with suppress(OSError):
            if not self.is_closed:
                self.wire.send(KINDS[self.kind][1])


@contextmanager
def slow_clients(port: int, count: int) -> Iterator[list[SlowClient]]:
    """Open `count` clients of each kind."""
    with ExitStack() as stack:
        clients = []
        for kind, (begin, _) in KINDS.items():
            for _ in range(count):
                wire = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
                wire.sendall(begin)
                wire.setblocking(False)
                clients.append(SlowClient(kind, wire))
        yield clients


def ends_of(clients: list[SlowClient], *, within_s: float) -> dict[str, Counter[tuple[int, ...]]]:
    """Return how often each end occurred, by kind. Clients with an open connection are not counted."""
    until = time.monotonic() + within_s
    while time.monotonic() < until and not all(client.is_closed for client in clients):
        for client in clients:
            if not client.is_closed:
                client.go_on()
        time.sleep(0.1)
    ends: dict[str, Counter[tuple[int, ...]]] = {kind: Counter() for kind in KINDS}
    for client in clients:
        if client.is_closed:
            ends[client.kind][client.statuses()] += 1
    return ends


def seconds_to_answer(port: int, path: str) -> float:
    """Return the seconds of a request on a new connection. Fail if the page is not served."""
    began = time.monotonic()
    answer = httpx.get(f"http://127.0.0.1:{port}{path}", headers={"Host": "localhost"}, timeout=10)
    assert answer.status_code == 200, answer.text
    return time.monotonic() - began


def exchange(port: int, request: bytes) -> bytes:
    """Send bytes, and return the response until the server closes, or sends nothing for two seconds."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as wire:
        with suppress(OSError):
            wire.sendall(request)
        wire.settimeout(2)
        with suppress(OSError):
            while piece := wire.recv(65_536):
                answer += piece
    return answer
