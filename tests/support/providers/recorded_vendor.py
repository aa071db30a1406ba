"""A provider on loopback. It answers model calls with recorded bodies, whole or cut, and records the requests."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

import yaml

from tests.support.recordings.recorded_files import recordings

#: The directory of recorded requests and answers.
RECORDED = "llm-http"
Framing = Literal["chunked", "broken", "close"]
#: Request path → protocol.
PROTOCOLS = {"/messages": "anthropic", "/chat/completions": "chat", "/responses": "responses"}
MODELS = {
    "anthropic": "anthropic:claude-sonnet-4-6",
    "chat": "openai-chat:gpt-4o",
    "responses": "openai-responses:gpt-4o",
}
#: The same protocols with models that resend their thoughts, if the protocol supports that.
THINKING_MODELS = MODELS | {"responses": "openai-responses:gpt-5"}


@dataclass(frozen=True)
class Answer:
    """The response to one request: a body, its bytes before `cut` being sent, and its ending.

    `chunked` ends like a whole body, `broken` without its last chunk, `close` with the end of the connection, as a body
    without a length does. `pauses` are the seconds to wait before the byte at a position.
    """

    body: bytes
    cut: int | None = None
    framing: Framing = "chunked"
    status: int = 200
    content_type: str = "text/event-stream"
    pauses: tuple[tuple[int, float], ...] = ()
    #: Bytes of a chunk. None: as few chunks as the pauses allow.
    piece: int | None = None

    @property
    def sent(self) -> bytes:
        return self.body[: self.cut]


@dataclass(frozen=True)
class Asked:
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Vendor:
    url: str
    #: The answers in order; the last one repeats.
    answers: list[Answer] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    vendor: Vendor

    def log_message(self, *_: Any) -> None:
        """Print nothing to the terminal."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        vendor = self.vendor
        vendor.asked.append(Asked(self.path, dict(self.headers), body))
        answer = vendor.answers.pop(0) if len(vendor.answers) > 1 else vendor.answers[0]
        self.send_response(answer.status)
        self.send_header("content-type", answer.content_type)
        # The tests close their event loops, so no connection may be kept alive.
        self.send_header("connection", "close")
        if answer.framing != "close":
            self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        with suppress(ConnectionError):  # The client may disconnect.
            self._send(answer)
        self.close_connection = True

    def _send(self, answer: Answer) -> None:
        sent, begin = answer.sent, 0
        for position, seconds in (*answer.pauses, (len(sent), 0.0)):
            between, begin = sent[begin:position], position
            for at in range(0, len(between), answer.piece or len(between) or 1):
                piece = between[at : at + (answer.piece or len(between))]
                self.wfile.write(piece if answer.framing == "close" else b"%x\r\n%s\r\n" % (len(piece), piece))
            time.sleep(seconds)
        if answer.framing == "chunked":
            self.wfile.write(b"0\r\n\r\n")


@contextmanager
def vendor_at_work() -> Iterator[Vendor]:
    handler = type("Handler", (_Handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    handler.vendor = vendor = Vendor(f"http://127.0.0.1:{server.server_address[1]}")  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
    thread.start()
    try:
        yield vendor
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


# --- Recorded bodies ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FixtureResult:
    """The body of a streamed answer as a provider sent it."""

    name: str
    protocol: str
    body: bytes


def streams() -> list[FixtureResult]:
    """Return every streamed answer of the recorded exchanges."""
    found = [
        FixtureResult(path.stem, "anthropic", path.read_bytes() + b"\n\n")
        for path in recordings(f"{RECORDED}/anthropic-sdk")
    ]
    for exchange in exchanges("text/event-stream"):
        if exchange.protocol and b"data: " in exchange.body:
            found.append(FixtureResult(exchange.name, exchange.protocol, exchange.body))
    return found


@dataclass(frozen=True)
class Exchange:
    """A recorded request and its response."""

    name: str
    #: Empty for requests that are not model calls: token counts, files, conversations, and retired APIs.
    protocol: str
    url: str
    status: int
    body: bytes


def exchanges(containing: str = "") -> list[Exchange]:
    """Return the recorded exchanges of all files that contain this text."""
    found = []
    for path in recordings(RECORDED):
        if path.suffix != ".yaml" or containing not in (text := path.read_text()):
            continue
        for number, recorded in enumerate(yaml.load(text, yaml.CSafeLoader)["interactions"]):
            answer, url = recorded["response"], recorded["request"]["uri"]
            status = answer["status"]["code"] if isinstance(answer["status"], dict) else answer["status"]
            found.append(Exchange(f"{path.stem}-{number}", _protocol(url), url, status, _body(answer)))
    return found


def _body(answer: dict[str, Any]) -> bytes:
    body = answer.get("body")
    body = body.get("string") if isinstance(body, dict) else body
    if body is None:
        return json.dumps(answer.get("parsed_body")).encode()
    body = body.encode() if isinstance(body, str) else body
    return gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body


def _protocol(uri: str) -> str:
    path = uri.partition("?")[0]
    return next((name for end, name in PROTOCOLS.items() if path.endswith(end)), "")


def has_ended(protocol: str, sent: bytes) -> bool:
    """Return whether the bytes contain the protocol's terminal event. An independent implementation, line by line."""
    return any(_is_terminal(protocol, event) for event in _events(sent))


def _events(sent: bytes) -> Iterator[dict[str, Any]]:
    for line in sent.decode(errors="replace").splitlines():
        if line.startswith("data:"):
            try:
                event = json.loads(line[5:])
            except ValueError:
                continue
            if isinstance(event, dict):
                yield event


def _is_terminal(protocol: str, event: dict[str, Any]) -> bool:
    if protocol == "anthropic":
        return event.get("type") == "message_stop"
    if protocol == "responses":
        return event.get("type") in ("response.completed", "response.incomplete", "response.failed")
    return any(choice.get("finish_reason") for choice in event.get("choices") or [])


def blocks_of(body: bytes) -> Iterator[str]:
    """Yield the types of an answer's parts, named as in its protocol."""
    whole = [json.loads(body)] if body.startswith(b"{") else []
    for event in (*whole, *_events(body)):
        parts = [*(event.get("content") or ()), *(event.get("output") or ())]
        parts += [event.get("content_block") or {}, event.get("item") or {}]
        yield from (part["type"] for part in parts if "type" in part)
        for choice in event.get("choices") or ():
            said = choice.get("message") or choice.get("delta") or {}
            yield from (name for name, value in said.items() if value)


def usages_of(body: bytes) -> Iterator[dict[str, Any]]:
    """Yield the usage objects of a body, named as in its protocol. A stream may contain several."""
    for event in [json.loads(body)] if body.startswith(b"{") else _events(body):
        for place in (event, event.get("message") or {}, event.get("response") or {}):
            if isinstance(place.get("usage"), dict):
                yield place["usage"]
