"""`agentops worker` as a separate process."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.command_line import MANAGE
from tests.support.waiting import eventually


@contextmanager
def worker_command(env: dict[str, str], log: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a worker that is ready for signals. It is killed at the end if it still runs."""
    with log.open("wb") as written:
        running = subprocess.Popen([*MANAGE, "worker", *words], env=env, stdout=written, stderr=subprocess.STDOUT)
    try:
        eventually(lambda: " ready." in log.read_text() or running.poll() is not None, why="it is ready")
        yield running
    finally:
        running.kill()
        running.wait()


def ended(running: subprocess.Popen[bytes], sig: int = signal.SIGTERM) -> int:
    """Send a signal to a worker, and return its exit code."""
    running.send_signal(sig)
    return running.wait(40)
