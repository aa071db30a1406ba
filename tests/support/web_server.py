"""The product's web server, in a thread or a separate process; slow clients; and a proxy that cuts streams off."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import psycopg
import uvicorn
from django.conf import settings
from django.db import connection

from runs.management.commands.serve import GRACE_S
from runs.management.site.web_server import web_config
from tests.support.machine import free_port
from tests.support.timing import eventually

if TYPE_CHECKING:
    from tests.support.child_processes import ChildProcess
    from tests.support.stage import Stage


#: Seconds until open streams are cut. The thread receives no signal, so its streams cannot end earlier.
THREAD_GRACE_S = 1


def connections_in_use() -> int:
    """Return the number of connections taken from this process's pool. The calling thread's connection is closed."""
    connection.close()
    pool = getattr(connection, "pool", None)
    stats = pool.get_stats() if pool else {}
    return int(stats.get("pool_size", 0) - stats.get("pool_available", 0))


class WebThread:
    """A server in this process, on the test's database. A restart keeps its port."""

    def __init__(self) -> None:
        self.port = 0
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        # Listen before the thread runs, so that no client is refused and no other process takes the port.
        sock = socket.create_server(("127.0.0.1", self.port), backlog=512)
        self.port = sock.getsockname()[1]
        config = web_config(timeout_graceful_shutdown=THREAD_GRACE_S)
        # In this thread, so that an application that cannot be loaded fails the test.
        config.load()
        self._server = server = uvicorn.Server(config)
        self._thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, name="web", daemon=True)
        self._thread.start()
        eventually(lambda: server.started or not self.alive, within_s=20, why="uvicorn has started")
        assert self.alive, "uvicorn did not start: see the log"

    @property
    def open_requests(self) -> int:
        """The number of requests in progress, including requests whose client has disconnected."""
        return len(self._server.server_state.tasks) if self._server else 0

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """Stop listening, cut open responses after a short wait, and free the port."""
        if self._server is None or self._thread is None:
            return
        self._server.should_exit = True
        self._thread.join(20)
        assert not self.alive, "uvicorn did not stop"
        self._server = None

    def restart(self) -> None:
        self.stop()
        self.start()


@dataclass
class WebProcess:
    """A server in a separate process, on the database of a stage. A restart keeps its port."""

    stage: Stage
    name: str = "agentops-web"
    #: Environment variables in addition to those from the stage.
    env: dict[str, str] = field(default_factory=dict)
    settings_module: str = "agentops.settings"
    port: int = field(default_factory=free_port)
    process: ChildProcess | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> WebProcess:
        self.process = self.stage.spawn(
            ["serve", "--port", str(self.port)],
            program="agentops",
            AGENTOPS_PROCESS_NAME=self.name,
            DJANGO_SETTINGS_MODULE=self.settings_module,
            # Sessions created in this process must be valid in the server.
            SECRET_KEY=settings.SECRET_KEY,
            **self.env,
        )
        eventually(self._answers, within_s=30, why="the web process listens")
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.alive, self.process.said()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        """Kill the process with SIGKILL, without a shutdown."""
        assert self.process is not None
        self.process.end()

    def restart(self) -> None:
        """Restart as a deployment does: send SIGTERM, wait for the end, and start a new process."""
        assert self.process is not None
        self.process.signal(signal.SIGTERM)
        self.process.wait(within_s=GRACE_S + 5, why="ended by SIGTERM")
        self.start()

    def threads(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))

    def memory_mib(self) -> float:
        """Return the resident memory in MiB."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * 4096 / 2**20

    def connections(self, server: psycopg.Connection[tuple[str]]) -> list[str]:
        """Return the states of this process's connections, as PostgreSQL reports them."""
        found = server.execute(
            "SELECT state FROM pg_stat_activity WHERE application_name = %s AND datname = %s",
            [self.name, self.stage.name],
        ).fetchall()
        return [state for [state] in found]


#: With a cookie: without one the server does not read the form's body.
HEAD = b"\r\n".join(
    [
        b"POST /login HTTP/1.1",
        b"Host: localhost",
        b"Cookie: csrftoken=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        b"Content-Type: application/x-www-form-urlencoded",
        b"",
    ]
)
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
