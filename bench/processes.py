"""Programs under measurement: started on the loopback interface, measured through /proc, ended with their children.

Imports nothing from agentops.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.workspace import Workspace

START_S = 40
END_S = 12
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1
#: State of an established connection in /proc/net/tcp.
ESTABLISHED = "01"


class NotStarted(Exception):
    """The program ended or does not respond. The message is the last line of its output."""


class Program:
    """A started program and its children."""

    def __init__(self, popen: subprocess.Popen[bytes], port: int, output: Path) -> None:
        self._popen = popen
        self.port = port
        self.output = output

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def pids(self) -> list[int]:
        found, left = [], [self._popen.pid]
        while left:
            pid = left.pop()
            found.append(pid)
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                with suppress(OSError):
                    left += map(int, children.read_text().split())
        return found

    def cpu_s(self) -> float:
        """Return the user and system CPU time since the start, in seconds."""
        return sum(self._each(process_cpu_s))

    def threads(self) -> int:
        return int(sum(self._each(lambda pid: len(os.listdir(f"/proc/{pid}/task")))))

    def rss_mib(self) -> float:
        return sum(self._each(_rss_mib))

    def connections(self, port: int) -> int:
        """Return the number of open connections of the program to the port."""
        sockets = _sockets_to(port)
        return int(sum(self._each(lambda pid: len(sockets & _open_sockets(pid)))))

    def alive(self) -> bool:
        return self._popen.poll() is None

    def kill(self) -> None:
        """Send SIGTERM to the program and its children, and SIGKILL to processes that survive it."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self._popen.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._popen.wait(END_S)

    def crash(self) -> None:
        """Send SIGKILL to the program and its children, and wait for its end."""
        with suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait(END_S)

    def last_line(self) -> str:
        lines = self.output.read_text(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else "it wrote nothing"

    def _each(self, look: Callable[[int], float]) -> Iterator[float]:
        for pid in self.pids():
            with suppress(OSError):
                yield look(pid)


@contextmanager
def running(
    command: Sequence[str | Path],
    environment: Mapping[str, str],
    output: Path,
    *,
    port: int = 0,
    start_s: float = START_S,
) -> Iterator[Program]:
    """Start the program and wait until it responds on `port` (0: it has none), for at most `start_s` seconds."""
    with output.open("wb") as stream:
        popen = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_us,  # noqa: PLW1509 - one system call, no lock of Python code or of the interpreter
        )
    program = Program(popen, port, output)
    try:
        if port:
            _wait_for_answer(program, start_s)
        yield program
    finally:
        program.kill()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def uvicorn(python: str | Path, application: str, port: int, *more: str) -> list[str | Path]:
    """Return the command of one uvicorn server process, with the same options for all."""
    flags = (
        f"--host 127.0.0.1 --port {port} --loop uvloop --http httptools --no-access-log --log-level warning"
        " --timeout-graceful-shutdown 2"
    )
    return [python, "-m", "uvicorn", application, *flags.split(), *more]


def site(port: int) -> list[str | Path]:
    """Return the command of one process of `agentops serve`."""
    return [Path(sys.executable).with_name("agentops"), "serve", "--port", str(port)]


@contextmanager
def served(workspace: Workspace) -> Iterator[Program]:
    """Start the site as one process of granian, without limits on slow clients and without streams."""
    port = free_port()
    flags = (
        f"--interface wsgi --host 127.0.0.1 --port {port} --workers 1 --blocking-threads 2 --no-ws --log-level warning"
    )
    command: list[str | Path] = [sys.executable, "-m", "granian", *flags.split(), "bench.wsgi_site:application"]
    with running(command, os.environ, workspace.folder / "wsgi.log", port=port) as program:
        yield program


def _end_with_us() -> None:
    """End the child together with the benchmark, even after SIGKILL. Called in the child."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait_for_answer(program: Program, start_s: float) -> None:
    until = time.monotonic() + start_s
    while time.monotonic() < until and program.alive():
        try:
            socket.create_connection(("127.0.0.1", program.port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise NotStarted(program.last_line())


def process_cpu_s(pid: int) -> float:
    """Return the user and system CPU time of a process since its start, in seconds."""
    # The kernel's number of the process's CPU clock, which is finer than the ticks of /proc/<pid>/stat.
    return time.clock_gettime(~pid << 3 | 2)


def _rss_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _sockets_to(port: int) -> set[str]:
    """Return the inodes of the sockets that are connected to the port."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == ESTABLISHED and int(fields[2].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found


def _open_sockets(pid: int) -> set[str]:
    found = set()
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            name = os.readlink(entry.path)
            if name.startswith("socket:["):
                found.add(name[8:-1])
    return found
