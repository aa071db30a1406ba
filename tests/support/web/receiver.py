"""A server on loopback that receives the requests of sinks. It responds as a test requires, and keeps all requests."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Received:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    url: str = ""
    received: list[Received] = field(default_factory=list)
    #: The next responses: status, headers, body. Later responses have status 200.
    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    #: Every n-th request gets a 500. 0: none.
    refuses_every: int = 0
    #: Seconds until a response.
    latency_s: float = 0.0
    #: The largest number of requests in progress at the same time.
    most_at_once: int = 0
    #: While this is cleared, no request gets a response.
    gate: threading.Event = field(default_factory=threading.Event)

    def answer(self, status: int, *, body: bytes = b"", **headers: str) -> None:
        """Add a response. Names of headers have _ for -."""
        self.answers.append((status, {name.replace("_", "-"): value for name, value in headers.items()}, body))


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    receiver.gate.set()
    lock, at_once = threading.Lock(), [0]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                receiver.received.append(Received(self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                is_refused = receiver.refuses_every and len(receiver.received) % receiver.refuses_every == 0
                usual: tuple[int, dict[str, str], bytes] = (500 if is_refused else 200, {}, b"{}")
                at_once[0] += 1
                receiver.most_at_once = max(receiver.most_at_once, at_once[0])
            receiver.gate.wait(20)
            time.sleep(receiver.latency_s)
            with lock:
                at_once[0] -= 1
                status, headers, answer = receiver.answers.pop(0) if receiver.answers else usual
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(answer))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}/in"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()
