"""A server with the protocols of four model providers, scripted answers, and a ledger of them.

The first part of a request's path names the program: `http://127.0.0.1:PORT/langgraph/v1/messages`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.newest.protocols import PROTOCOLS, Events, Protocol
from tests.newest.script import Conversation, Turn, next_turn


@dataclass(frozen=True)
class Served:
    """A model call that the server has answered."""

    program: str
    protocol: str
    answer_id: str
    conversation: Conversation
    turn: Turn


@dataclass
class ModelServer:
    """The server's address and its ledger."""

    url: str = ""
    ledger: list[Served] = field(default_factory=list)
    #: The paths of the requests that no protocol knows.
    unknown: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, program: str, protocol: Protocol, body: dict[str, Any]) -> Served:
        """Answer a request, and enter the answer into the ledger."""
        conversation = protocol.read(body)
        with self._lock:
            number = len(self.ledger) + 1
            turn = next_turn(conversation, number, has_cache_writes=protocol.has_cache_writes, reasons=protocol.reasons)
            served = Served(program, protocol.name, f"{protocol.name}_{program}_{number}", conversation, turn)
            self.ledger.append(served)
        return served

    def served(self, program: str) -> list[Served]:
        """Return the model calls of a program."""
        return [entry for entry in self.ledger if entry.program == program]


@contextmanager
def serving() -> Iterator[ModelServer]:
    """Serve on a free port of loopback until the end of the block."""
    model_server = ModelServer()

    class Handler(_Handler):
        models = model_server

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    model_server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield model_server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    models: ModelServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        _, program, path = self.path.partition("?")[0].split("/", 2)
        protocol = next((one for end, one in PROTOCOLS.items() if f"/{path}".endswith(end)), None)
        if protocol is None:
            self.models.unknown.append(self.path)
            self._send(404, "application/json", b'{"error": {"type": "not_found", "message": "unknown path"}}')
            return
        if protocol.name == "gemini":
            body["model"] = path.rpartition("/")[2].partition(":")[0]
        served = self.models.answer(program, protocol, body)
        arguments = (served.turn, served.answer_id, served.conversation.model)
        if served.conversation.is_streamed or path.endswith(":streamGenerateContent"):
            self._send(200, "text/event-stream", _encoded(protocol, protocol.stream(*arguments)))
        else:
            self._send(200, "application/json", json.dumps(protocol.write(*arguments)).encode())

    def _send(self, status: int, content_type: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Write nothing."""


def _encoded(protocol: Protocol, events: Events) -> bytes:
    """Return events as the bytes of a stream. Chat Completions ends its stream with a text that is not JSON."""
    lines = []
    for name, data in events:
        lines += [f"event: {name}\n"] if name else []
        lines.append(f"data: {json.dumps(data)}\n\n")
    return "".join([*lines, "data: [DONE]\n\n"] if protocol.name == "chat" else lines).encode()
