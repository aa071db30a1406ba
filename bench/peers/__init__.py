"""Peers: other programs, each with a virtual environment and a database that are created on first use.

A peer runs as a process that executes a given number of steps and reports the duration.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from bench import payload
from bench.processes import process_cpu_s
from bench.workspace import Workspace, database, sibling_url

SCRIPTS = Path(__file__).parent
INSTALL_TIMEOUT_S = 900


class PeerUnusable(Exception):
    """The peer could not be installed or did not run. The message fits a row of the table."""


class Maker(Protocol):
    def steps(self, count: int) -> float:
        """Execute the next steps, and return the seconds."""
        ...


class PeerProcess:
    """A running peer, which executes one window of steps per turn."""

    def __init__(self, process: subprocess.Popen[str], url: str, window: int) -> None:
        self._process = process
        self._window = window
        self.url = url
        self.title = str(json.loads(self._line())["title"])

    def steps(self, count: int) -> float:
        if count != self._window:
            raise ValueError(f"this peer makes {self._window} steps at a time, not {count}")
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return float(json.loads(self._line())["seconds"])

    def cpu_s(self) -> float:
        """Return the processor time of the peer since its start, in seconds."""
        return process_cpu_s(self._process.pid)

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerUnusable(f"ended with exit code {self._process.wait()}")
        return line


@dataclass(frozen=True)
class Peer:
    title: str
    environment: str
    requirements: tuple[str, ...]
    script: str
    arguments: tuple[str, ...] = ()

    @contextmanager
    def started(
        self, workspace: Workspace, turns: Sequence[payload.PayloadStep], *, window: int, runs: int = 1
    ) -> Iterator[PeerProcess]:
        """Start the peer on an empty database, ready for its first window."""
        python = installed(self.environment, self.requirements)
        said = workspace.folder / f"{self.environment}.json"
        payload.write_plain(said, list(turns))
        complaints = workspace.folder / f"{self.environment}.err"
        with database(sibling_url(workspace.url, self.environment)) as url, complaints.open("w+") as errors:
            arguments = [str(said), url, str(window), str(runs), *self.arguments]
            with self._process(python, arguments, errors) as process:
                try:
                    yield PeerProcess(process, url, window)
                except PeerUnusable as error:
                    errors.seek(0)
                    last = (errors.read().strip().splitlines() or [""])[-1]
                    raise PeerUnusable(f"{error}: {last}"[:120]) from error

    @contextmanager
    def _process(self, python: Path, arguments: list[str], errors: IO[str]) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [python, SCRIPTS / self.script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=variables(),
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def installed(environment: str, requirements: Sequence[str]) -> Path:
    """Return the interpreter of the peer's environment. Create the environment if it is incomplete."""
    base = Path(os.environ.get("BENCH_PEERS_VENV") or Path.home() / ".cache" / "agentops-bench")
    home = base.expanduser() / environment
    python, stamp = home / "bin" / "python", home / "installed.txt"
    required = "\n".join(requirements)
    if stamp.is_file() and stamp.read_text() == required:
        return python
    try:
        _run([sys.executable, "-m", "venv", "--clear", home])
        _run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements])
    except (OSError, subprocess.SubprocessError) as error:
        raise PeerUnusable(f"not installed ({_reason(error)})") from error
    stamp.write_text(required)
    return python


def variables() -> dict[str, str]:
    """Return the environment variables of a peer, without variables that would make its Python import agentops."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DJANGO"))}


def _reason(error: OSError | subprocess.SubprocessError) -> str:
    """Return the last line of what the installer has written, or the kind of the error."""
    lines = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else type(error).__name__


def _run(command: list[str | Path]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_TIMEOUT_S)


_LANGGRAPH = ("langgraph>=1.2,<2", "langgraph-checkpoint-postgres>=3.2,<4", "psycopg[binary,pool]>=3.3,<4")
_DBOS = ("dbos>=3.4,<4", "psycopg[binary]>=3.3,<4")


def _peers(way: str) -> tuple[Peer, ...]:
    """Return the peers. With "steps" they execute one run after the other, with "runs" many at once."""
    return (
        Peer("langgraph (delta)", "langgraph", _LANGGRAPH, "langgraph_peer.py", (way, "delta")),
        Peer("dbos", "dbos", _DBOS, "dbos_peer.py", (way,)),
        Peer("langgraph (list)", "langgraph", _LANGGRAPH, "langgraph_peer.py", (way, "list")),
    )


STEPPING, RUNNING = _peers("steps"), _peers("runs")
# With uvloop and httptools, like agentops.
EVENTSTREAM = (
    "django-eventstream>=5.3,<6",
    "django>=5.2.19,<5.3",
    "redis>=5.2",
    "psycopg[binary]>=3.3,<4",
    "uvicorn[standard]>=0.54,<1",
)
