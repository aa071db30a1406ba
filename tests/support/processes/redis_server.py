"""A Redis server that a test may kill."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import redis
from celery import Celery

from tests.support.services import missing
from tests.support.waiting import eventually


class OwnRedis:
    """A Redis server that a test may kill."""

    def __init__(self, directory: Path, port: int | None = None, *, options: Sequence[str] = ()) -> None:
        self._directory, self._options = directory, options
        with socket.socket() as free:
            free.bind(("127.0.0.1", port or 0))
            self.port = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if shutil.which("redis-server") is None:
            missing("there is no redis-server to start")
        self._process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
             "--dir", str(self._directory), *self._options],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        eventually(self._answers, why="Redis answers")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def suspend(self) -> None:
        """Suspend the server. It keeps its connections, but does not respond."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def hint(self, run_id: UUID, times: int = 1) -> None:
        """Send the message that a web process sends after committing a queued run."""
        with Celery("hints", broker=self.url) as app:
            for _ in range(times):
                app.send_task("runs.advance", args=[str(run_id)], queue="default", priority=6, retry=False)

    def _answers(self) -> bool:
        with redis.Redis.from_url(self.url, socket_connect_timeout=1) as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False
