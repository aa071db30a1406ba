"""The product's web server for tests, in a thread or in a separate process."""

from __future__ import annotations

import signal
import socket
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import uvicorn
from django.conf import settings
from django.db import connection

from runs.management.commands.serve import GRACE_S
from runs.management.site.web_server import web_config
from tests.support.free_port import free_port
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.support.processes.child_processes import ChildProcess
    from tests.support.processes.stage import Stage

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
            ["serve", "--port", str(self.port)], program="agentops", AGENTOPS_PROCESS_NAME=self.name,
            DJANGO_SETTINGS_MODULE=self.settings_module,
            # Sessions created in this process must be valid in the server.
            SECRET_KEY=settings.SECRET_KEY, **self.env,
        )  # fmt: skip
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
