"""A strict client of server-sent events on plain asyncio streams, and a loop in a thread for synchronous tests.

Implements HTTP and the WHATWG's rules for EventSource without product code, so that it shares no mistakes with the
server. Hundreds of clients fit into one process. Any thread may read the lists of a follower.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from tests.support.timing import eventually

#: Receive buffer of a slow client, small enough that the server notices.
TINY = 2048


class Malformed(AssertionError):
    """The server sent data that a strict client must not accept."""


@dataclass(frozen=True, slots=True)
class Message:
    """One block of the stream: an event, a comment, or only an ID or a retry."""

    event: str = "message"
    data: str | None = None
    id: str | None = None
    retry_ms: int | None = None
    comment: str | None = None
    #: The time.monotonic() of its arrival.
    at: float = 0.0


# --- The format -------------------------------------------------------------------------------------------------


class Parser:
    """Converts bytes in pieces of any size to messages. Lines end with LF, CR or both, as the standard says.

    A comment or a retry at the start of a block is a message immediately, because nothing has to follow it.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._block: list[bytes] = []

    def feed(self, data: bytes) -> list[Message]:
        data, now = self._rest + data, time.monotonic()
        # A CR at the end may be half of a CRLF.
        held = b"\r" if data.endswith(b"\r") else b""
        text = data.removesuffix(held) if held else data
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = text.split(b"\n")
        self._rest = rest + held
        return [_message(block.decode(), now) for line in lines if (block := self._complete(line))]

    def _complete(self, line: bytes) -> bytes:
        """Return what the line completes: itself, the block before it, or nothing."""
        if not self._block and line.startswith((b":", b"retry:")):
            return line
        if line:
            self._block.append(line)
            return b""
        block, self._block = b"\n".join(self._block), []
        return block

    @property
    def idle(self) -> bool:
        """Return whether no unfinished block remains."""
        return not self._block and not self._rest.strip(b"\n")


def _message(block: str, at: float) -> Message:
    event, data, id_, retry, comment = "message", [], None, None, None
    for line in block.split("\n"):
        name, colon, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        elif name == "event":
            event = value
        elif name == "id" and "\0" not in value:
            id_ = value
        elif name == "retry" and value.isascii() and value.isdigit():
            retry = int(value)
        elif colon and not name:
            comment = value
        else:
            raise Malformed(f"no such field: {line[:200]!r}")
    if event != "message" and not data:
        raise Malformed(f"a browser drops an event without data: {block[:200]!r}")
    return Message(event, "\n".join(data) if data else None, id_, retry, comment, at)


# --- One connection ---------------------------------------------------------------------------------------------


@dataclass
class Answer:
    """The head of a response, and its body as it arrives."""

    status: int
    headers: Mapping[str, str]
    version: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def streams(self) -> bool:
        return self.headers.get("content-type", "").partition(";")[0] == "text/event-stream"

    async def pieces(self) -> AsyncIterator[bytes]:
        if self.headers.get("transfer-encoding") == "chunked":
            async for piece in self._chunks():
                yield piece
        elif "content-length" in self.headers:
            yield await self.reader.readexactly(int(self.headers["content-length"]))
        else:
            while piece := await self.reader.read(1 << 16):
                yield piece

    async def _chunks(self) -> AsyncIterator[bytes]:
        while size := int((await self.reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            chunk = await self.reader.readexactly(size + 2)
            if not chunk.endswith(b"\r\n"):
                raise Malformed("a chunk does not end where it says")
            yield chunk[:-2]
        await self.reader.readuntil(b"\r\n")

    async def body(self) -> bytes:
        return b"".join([piece async for piece in self.pieces()])

    async def messages(self) -> AsyncIterator[Message]:
        parser = Parser()
        async for piece in self.pieces():
            for message in parser.feed(piece):
                yield message
        if not parser.idle:
            raise Malformed("the stream ended inside a message")

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


async def ask(
    url: str,
    headers: Mapping[str, str] | None = None,
    *,
    method: str = "GET",
    version: str = "1.1",
    receive_buffer: int | None = None,
) -> Answer:
    """Send a request without a body, and read the head of the response."""
    parts = urlsplit(url)
    sock = socket.socket()
    sock.setblocking(False)
    limit = 1 << 16
    if receive_buffer:
        # Before connecting, because the window is negotiated with the connection.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        limit = receive_buffer
    try:
        await asyncio.get_running_loop().sock_connect(sock, (parts.hostname, parts.port))
    except BaseException:
        sock.close()
        raise
    reader, writer = await asyncio.open_connection(sock=sock, limit=limit)
    path = urlunsplit(("", "", parts.path, parts.query, ""))
    all_headers = {"Host": parts.netloc, "Accept": "text/event-stream"} | dict(headers or {})
    lines = [f"{method} {path} HTTP/{version}", *(f"{name}: {value}" for name, value in all_headers.items())]
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    except BaseException:
        writer.close()
        raise
    spoken, status, *_ = head[0].split(" ")
    fields = (line.partition(":") for line in head[1:] if line)
    found = {name.lower(): value.strip() for name, _, value in fields}
    return Answer(int(status), found, spoken.removeprefix("HTTP/"), reader, writer)


# --- Behaviour of an EventSource --------------------------------------------------------------------------------


@dataclass
class Follower:
    """Follows a stream over any number of connections, and keeps all messages.

    It reconnects as a browser does: with the last ID in `Last-Event-ID`, or (`by_query`) as a new EventSource with
    `afterSeq`. It stops for good at `event: end` with `stop_at_end`, at any status except 200, and when it is closed.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    by_query: bool = False
    stop_at_end: bool = False
    #: Seconds before a reconnection. By default, the server's retry time.
    pause_s: float | None = None
    receive_buffer: int | None = None
    #: Continue after refused connections and 5xx, like a page that creates new EventSources.
    stubborn: bool = False
    #: Seconds of pause after each message, for a reader that cannot keep up.
    slow_s: float = 0.0

    messages: list[Message] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    last_id: str = ""
    error: BaseException | None = None

    _hurried: asyncio.Event = field(default_factory=asyncio.Event)
    _retry_s: float = 3.0
    _closed: bool = False
    _dropped: bool = False

    @property
    def statuses(self) -> list[int]:
        return [answer.status for answer in self.answers]

    @property
    def ids(self) -> list[int]:
        """The IDs of the events, in the order of arrival."""
        return [int(message.id) for message in self.messages if message.id and message.data is not None]

    def events(self, name: str) -> list[Message]:
        return [message for message in self.messages if message.data is not None and message.event == name]

    @property
    def comments(self) -> list[Message]:
        return [message for message in self.messages if message.comment is not None]

    def drop(self) -> None:
        """Abort the connection. The follower reconnects."""
        self._dropped = True
        if self.answers:
            self.answers[-1].writer.transport.abort()

    def hurry(self) -> None:
        """Stop pausing after messages."""
        self.slow_s = 0.0
        self._hurried.set()

    def close(self) -> None:
        self._closed = True
        self.drop()

    async def run(self) -> None:
        try:
            while not self._closed and await self._connection():
                await asyncio.sleep(self._retry_s if self.pause_s is None else self.pause_s)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.error = error

    async def _connection(self) -> bool:
        """Follow one connection to its end. Return whether to reconnect."""
        self._dropped = False
        try:
            answer = await ask(*self._request(), receive_buffer=self.receive_buffer)
        except (OSError, asyncio.IncompleteReadError):
            return self.stubborn
        self.answers.append(answer)
        try:
            if answer.status != 200:
                return self.stubborn and answer.status >= 500
            if not answer.streams:
                raise Malformed(f"not a stream: {answer.headers}")
            return await self._follow(answer)
        except (OSError, asyncio.IncompleteReadError):
            return True
        except Malformed:
            if self._dropped:
                return True
            raise
        finally:
            await answer.close()

    def _request(self) -> tuple[str, dict[str, str]]:
        headers = dict(self.headers)
        if not self.last_id:
            return self.url, headers
        if not self.by_query:
            return self.url, headers | {"Last-Event-ID": self.last_id}
        parts = urlsplit(self.url)
        query = dict(parse_qsl(parts.query)) | {"afterSeq": self.last_id}
        return urlunsplit(parts._replace(query=urlencode(query))), headers

    async def _follow(self, answer: Answer) -> bool:
        async for message in answer.messages():
            self.messages.append(message)
            if message.id is not None:
                self.last_id = message.id
            if message.retry_ms is not None:
                self._retry_s = message.retry_ms / 1000
            if message.event == "end" and self.stop_at_end:
                return False
            if self.slow_s:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.slow_s):
                        await self._hurried.wait()
        return True


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A complete response that is not a stream."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Listeners:
    """All stream clients of one test."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="listeners", daemon=True)
        self._thread.start()
        self._tasks: list[tuple[Follower, asyncio.Task[None]]] = []

    def do(self, coroutine: Coroutine[Any, Any, T], *, within_s: float = 20) -> T:
        """Run a coroutine on the clients' loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(within_s)

    def call(self, function: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(function)

    def open(self, url: str, headers: Mapping[str, str] | None = None, **options: Any) -> Follower:
        """Start a client that follows the stream."""
        follower = Follower(url, dict(headers or {}), **options)
        self.follow(follower)
        return follower

    def follow(self, follower: Follower) -> None:
        async def begin() -> None:
            self._tasks.append((follower, asyncio.get_running_loop().create_task(follower.run())))

        self.do(begin())

    def ask(self, url: str, headers: Mapping[str, str] | None = None, **options: Any) -> Refusal:
        """Return the response. For a stream, the body is left empty, because it does not end."""

        async def whole() -> Refusal:
            answer = await ask(url, headers, **options)
            try:
                return Refusal(answer.status, answer.headers, await _body(answer, options.get("method", "GET")))
            finally:
                await answer.close()

        return self.do(whole())

    def read_to_end(self, url: str, headers: Mapping[str, str] | None = None, **options: Any) -> list[Message]:
        """Return all messages of a stream that ends without a disconnection by the client."""

        async def whole() -> list[Message]:
            answer = await ask(url, headers, **options)
            try:
                assert answer.status == 200, await answer.body()
                return [message async for message in answer.messages()]
            finally:
                await answer.close()

        return self.do(whole())

    def close(self) -> None:
        """End all clients. Fail if a client has received malformed data."""

        async def end() -> None:
            for follower, task in self._tasks:
                follower.close()
                task.cancel()
            await asyncio.gather(*(task for _, task in self._tasks), return_exceptions=True)

        self.do(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        for follower, _ in self._tasks:
            if follower.error is not None:
                raise follower.error


def heard(follower: Follower, ids: list[int], *, within_s: float = 20) -> None:
    """Wait for the last of `ids`. Check that exactly these IDs arrived, once and in order."""
    eventually(
        lambda: follower.error or follower.ids[-1:] == ids[-1:],
        within_s=within_s,
        why=lambda: f"seq {ids[-1]} arrives: {follower.statuses} {follower.ids[-5:]}",
    )
    assert follower.error is None, follower.error
    assert follower.ids == ids


async def _body(answer: Answer, method: str) -> bytes:
    return b"" if method == "HEAD" or answer.streams else await answer.body()
