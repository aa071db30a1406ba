"""A proxy on loopback that forwards bytes unchanged, and keeps the body of each HTTP request. Standard library only."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from dataclasses import dataclass


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
