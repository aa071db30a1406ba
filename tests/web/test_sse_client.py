"""The suite's stream client: it must detect faults of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from tests.support.stream_clients import Follower, Malformed, Message, Parser, ask

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
Handler = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]
STREAM = b'retry: 10\n\n: hello\n\nid: 1\nevent: rows\ndata: <li>\ndata:  a\xc3\xa9\n\nid: 2\r\ndata: {"n":2}\r\n\r\n'
PARSED = [
    ("message", None, None, 10, None),
    ("message", None, None, None, " hello"[1:]),
    ("rows", "<li>\n aé", "1", None, None),
    ("message", '{"n":2}', "2", None, None),
]


def plain(messages: list[Message]) -> list[tuple[object, ...]]:
    return [(each.event, each.data, each.id, each.retry_ms, each.comment) for each in messages]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_client_reads_a_stream_split_anywhere(size: int) -> None:
    parser = Parser()
    cuts = [*range(0, len(STREAM), size), len(STREAM)]

    assert plain([each for a, b in pairwise(cuts) for each in parser.feed(STREAM[a:b])]) == PARSED
    assert parser.idle


@pytest.mark.parametrize(
    "text", [b"idd: 1\n\n", b"retry: soon\n\n", b"id: a\0b\n\n", b"event: rows\n\n", b"data\x01: x\n\n"]
)
def test_client_refuses_data_that_a_browser_would_drop(text: bytes) -> None:
    with pytest.raises(Malformed):
        Parser().feed(text)


def serve(handler: Handler, client: Callable[[str], Awaitable[None]]) -> None:
    async def both() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await handler(await reader.readuntil(b"\r\n\r\n"), writer)
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            await client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x")

    asyncio.run(both())


def test_client_reconnects_with_the_last_id() -> None:
    asked: list[bytes] = []

    async def handler(head: bytes, writer: asyncio.StreamWriter) -> None:
        asked.append(head)
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        body = b"retry: 1\n\nid: %d\ndata: x\n\n" % len(asked)
        writer.write(b"%x\r\n%s\r\n" % (len(body), body))
        # The second connection breaks within a chunk.
        writer.write(b"0\r\n\r\n" if len(asked) != 2 else b"20\r\nid: 7\n")
        if len(asked) == 3:
            follower.close()

    async def client(url: str) -> None:
        follower.url = url
        await follower.run()

    follower = Follower("")
    serve(handler, client)

    assert follower.error is None
    assert follower.ids == [1, 2, 3]
    assert [b"Last-Event-ID: %d" % n in head for n, head in enumerate(asked)] == [False, True, True]


@pytest.mark.parametrize("by_query", [False, True])
def test_client_stops_at_204(by_query: bool) -> None:
    async def handler(head: bytes, writer: asyncio.StreamWriter) -> None:
        came_back = b"afterSeq=1" in head if by_query else b"Last-Event-ID: 1" in head
        first = HEAD + b"\r\nretry: 1\n\nid: 1\ndata: x\n\n"
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n" if came_back else first)

    async def client(url: str) -> None:
        follower.url = url
        await follower.run()

    follower = Follower("", by_query=by_query)
    serve(handler, client)

    assert follower.statuses == [200, 204]


@pytest.mark.parametrize(
    "body",
    [b"Transfer-Encoding: chunked\r\n\r\n5\r\nid: 12\r\n0\r\n\r\n", b"\r\nid: 1\ndata: x\n\ndata: half\n"],
    ids=["wrong chunk", "half a message"],
)
def test_client_fails_on_wrong_framing(body: bytes) -> None:
    async def handler(head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + body)

    async def client(url: str) -> None:
        answer = await ask(url)
        with pytest.raises(Malformed):
            [each async for each in answer.messages()]
        await answer.close()

    serve(handler, client)
