"""A proxy on loopback that cuts streams off in the middle, as bad networks do. Standard library only."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading

#: Seconds from a response's first byte to its cut.
CUT_AFTER_S = (0.05, 1.0)


class CuttingProxy:
    """Forwards bytes to another port of loopback and back. It counts the responses that it cuts."""

    def __init__(self, target: int, *, ports: int = 1, seed: int = 1) -> None:
        self.ports: list[int] = []
        self.cuts = 0
        #: Whether streams are cut. Setting it to False affects streams that begin later.
        self.is_cutting = True
        self._target = target
        self._dice = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(ports), self._loop).result(10)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self, ports: int) -> None:
        self._servers = [await asyncio.start_server(self._serve, "127.0.0.1", 0) for _ in range(ports)]
        self.ports = [server.sockets[0].getsockname()[1] for server in self._servers]

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
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
            sending = asyncio.create_task(_pass_on(client, to_server))
            try:
                await self._answer(server, to_client)
            finally:
                sending.cancel()
                to_server.transport.abort()
        to_client.close()

    async def _answer(self, server: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        first = await server.read(65_536)
        to_client.write(first)
        pause_s = self._dice.uniform(*CUT_AFTER_S) if self.is_cutting and b"text/event-stream" in first else None
        try:
            async with asyncio.timeout(pause_s):
                await _pass_on(server, to_client)
        except TimeoutError:
            self.cuts += 1
            to_client.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(65_536):
        writer.write(piece)
        await writer.drain()
