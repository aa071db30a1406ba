"""Servers of others, on loopback: receivers of sinks, raw bytes over HTTP, a mail server, aimock, a recording proxy.

aimock is a third-party server with the protocols of Anthropic and OpenAI and scripted answers. The suite starts it once
for each process; the prompt of a test identifies its script.
"""

from __future__ import annotations

import asyncio
import contextlib
import email
import email.policy
import json
import re
import socket
import socketserver
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from tests.support.machine import install_node_packages
from tests.support.timing import eventually


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


Script = Callable[[socket.socket], None]


class Server:
    def __init__(self, script: Script, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[bytes] = []
        self._script, self._tls = script, tls
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with suppress(OSError), connection:
                connection.settimeout(5)
                self._answer(self._tls.wrap_socket(connection, server_side=True) if self._tls else connection)

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            self.requests.append(_request(connection))
            self._script(connection)

    def close(self) -> None:
        # Closing alone does not wake the thread in accept().
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)


@contextmanager
def serving(script: Script | bytes, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    server = Server((lambda connection: connection.sendall(script)) if isinstance(script, bytes) else script, tls)
    try:
        yield server
    finally:
        server.close()


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def _request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536) or b"\r\n\r\n"
    head, _, body = data.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            while len(body) < int(line.partition(b":")[2]):
                body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


@dataclass
class Inbox:
    """The received mails, and the behaviour of the server."""

    port: int = 0
    #: Each recipient with the received message.
    mails: list[tuple[str, EmailMessage]] = field(default_factory=list)
    #: Refused recipients, with the server's response.
    refused: dict[str, str] = field(default_factory=dict)
    #: The greeting.
    greeting: str = "220 mail.test"
    #: Number of times that the server accepts a mail and then disconnects without a response, as if it had crashed.
    silent: int = 0
    connections: int = 0

    def of(self, recipient: str) -> list[EmailMessage]:
        return [mail for to, mail in self.mails if to == recipient]

    @property
    def recipients(self) -> list[str]:
        return sorted(to for to, _ in self.mails)


class _Conversation(socketserver.StreamRequestHandler):
    timeout = 30

    def handle(self) -> None:
        inbox: Inbox = self.server.inbox  # type: ignore[attr-defined]
        inbox.connections += 1
        self.say(inbox.greeting)
        recipients: list[str] = []
        for line in iter(self.rfile.readline, b""):
            verb, _, rest = line.decode().strip().partition(" ")
            match verb.upper():
                case "EHLO" | "HELO":
                    self.say("250 mail.test")
                case "RCPT":
                    to = rest.partition("<")[2].partition(">")[0]
                    answer = inbox.refused.get(to, "250 ok")
                    if answer.startswith("250"):
                        recipients.append(to)
                    self.say(answer)
                case "DATA":
                    self.say("354 go on")
                    message = self.message()
                    inbox.mails += [(to, message) for to in recipients]
                    recipients = []
                    if inbox.silent:
                        inbox.silent -= 1
                        return
                    self.say("250 taken")
                case "QUIT":
                    self.say("221 bye")
                    return
                case _:
                    self.say("250 ok")

    def message(self) -> EmailMessage:
        lines = []
        for line in iter(self.rfile.readline, b""):
            if line == b".\r\n":
                break
            lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
        parsed: Any = email.message_from_bytes(b"".join(lines), policy=email.policy.default)
        found: EmailMessage = parsed
        return found

    def say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    inbox: Inbox


@contextmanager
def mail_server(**behaviour: Any) -> Iterator[Inbox]:
    with _Server(("127.0.0.1", 0), _Conversation) as server:
        server.inbox = inbox = Inbox(port=server.server_address[1], **behaviour)
        thread = threading.Thread(target=server.serve_forever, name="smtp")
        thread.start()
        try:
            yield inbox
        finally:
            server.shutdown()
            thread.join()


@dataclass(frozen=True)
class SentRequest:
    """A request as it was sent."""

    path: str
    #: Names in lower case.
    headers: dict[str, str]
    body: bytes
    #: The time of its last byte, in seconds since 1970.
    at: float


class RecordingProxy:
    """Forwards bytes to another port of loopback and back. Requests must state the length of their body."""

    def __init__(self, target: int) -> None:
        self.port = 0
        #: Complete requests in the order of their last byte.
        self.requests: list[SentRequest] = []
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="recording-proxy", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            server, to_server = await asyncio.open_connection("127.0.0.1", self._target)
            sending = asyncio.create_task(self._pass_requests(client, to_server))
            try:
                while piece := await server.read(65_536):
                    to_client.write(piece)
                    await to_client.drain()
            finally:
                sending.cancel()
                to_server.transport.abort()
        to_client.close()

    async def _pass_requests(self, client: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = await client.readuntil(b"\r\n\r\n")
                first, *lines = head.decode("latin-1").split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines)}
                body = await client.readexactly(int(headers.get("content-length", 0)))
                self.requests.append(SentRequest(first.split(" ")[1], headers, body, time.time()))
                to_server.write(head + body)
                await to_server.drain()


PACKAGES = Path(__file__).parent / "node/mock_server"
#: Request path → the member of the request that holds the conversation.
CONVERSATIONS = {"/v1/messages": "messages", "/v1/chat/completions": "messages", "/v1/responses": "input"}
#: Members of a fixture that are not part of its response.
CONNECTION = ("latency", "chunkSize", "truncateAfterChunks", "disconnectAfterMs")
Json = dict[str, Any]


class MockModelServer:
    """The server, behind a proxy that records the exact bytes of the requests."""

    def __init__(self, home: Path) -> None:
        program = install_node_packages(PACKAGES) / "node_modules/@copilotkit/aimock/dist/cli.js"
        self._log = home / "mock-model-server.log"
        # Scripts in a file are not validated, so broken arguments are possible.
        options = ["-p", "0", "-h", "127.0.0.1", "-f", str(PACKAGES / "fixtures.json"), "--journal-max", "0"]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(["node", str(program), *options], stdout=log, stderr=log)
        port = eventually(self._port, within_s=20, why=self._log.read_text)
        self._control = f"http://127.0.0.1:{port}/__aimock"
        self._proxy = RecordingProxy(port)
        self.url = f"http://127.0.0.1:{self._proxy.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that make the vendors' libraries use this server."""
        return {
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": "sk-of-nobody",
            "OPENAI_BASE_URL": f"{self.url}/v1",
            "OPENAI_API_KEY": "sk-of-nobody",
        }

    def script(self, prompt: str, *turns: Json | list[Json], resumes: bool = False) -> None:
        """Answer the conversation that `prompt` begins with these turns. All but the last turn end with calls.

        A turn is a response in the server's format, or a list of responses to a repeated request; the last one repeats.
        The members in CONNECTION configure its connection. `resumes` is for a prompt within a conversation.
        """
        fixtures: list[Json] = []
        # Matched by the last result, because protocols count the turns of a conversation differently.
        turn_match: Json = {} if resumes else {"hasToolResult": False}
        for turn in turns:
            responses = turn if isinstance(turn, list) else [turn]
            match = {"userMessage": prompt, **turn_match}
            # The first match wins, so later turns, which match more specifically, come first.
            fixtures[:0] = [_fixture(match, place, responses) for place in range(len(responses))]
            if calls := responses[-1].get("toolCalls"):
                turn_match = {"toolCallId": calls[-1]["id"]}
        answer = httpx.post(f"{self._control}/fixtures", json={"fixtures": fixtures})
        assert answer.status_code == 200, answer.text

    def sent(self, prompt: str) -> list[SentRequest]:
        """Return the model calls of the conversation that `prompt` begins, in order."""
        return [request for request in self._proxy.requests if prompt in text_of(json.loads(request.body))]

    def journal(self, prompt: str) -> list[Json]:
        """Return the server's log of the same calls: each parsed request with its answer."""
        entries = httpx.get(f"{self._control}/journal").json()
        return [entry for entry in entries if prompt in text_of(entry["body"])]

    def close(self) -> None:
        self._proxy.close()
        self._process.kill()
        self._process.wait(10)

    def _port(self) -> int:
        found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", self._log.read_text())
        return int(found[1]) if found else 0


def _fixture(match: Json, place: int, responses: list[Json]) -> Json:
    """Return a fixture for one response to a repeated request. The last response answers all further requests."""
    answer = responses[place]
    order = {"sequenceIndex": place} if place < len(responses) - 1 else {}
    connection = {name: answer[name] for name in CONNECTION if name in answer}
    response = {name: value for name, value in answer.items() if name not in CONNECTION}
    return {"match": match | order, "response": response, **connection}


def assert_prefixes(requests: list[SentRequest]) -> None:
    """Check that each request repeats the previous one byte for byte, and continues it."""
    bodies = [json.loads(request.body) for request in requests]
    for before, after in pairwise(bodies):
        name = CONVERSATIONS[requests[0].path.partition("?")[0]]
        said, then = before.pop(name), after[name]
        assert text_of(then[: len(said)]) == text_of(said)
        # The rest, including tools and instructions, stays the same.
        assert text_of({key: value for key, value in after.items() if key != name}) == text_of(before)


def text_of(value: Any) -> str:
    """Return JSON text with the members in their original order."""
    return json.dumps(value, ensure_ascii=False)
