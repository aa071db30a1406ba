"""Runs a command in the sandbox: starts it, reads its output, and ends it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from runs.tools.base import ToolDenied
from runs.tools.sandbox import confinement

LAUNCHER = Path(__file__).with_name("launcher.py")
#: Maximum bytes of the output that are kept, from its beginning and from its end.
HEAD, TAIL = 192 * 1024, 64 * 1024
#: Maximum bytes that a command may write before it is ended.
MAX_WRITTEN = 64 * 1024 * 1024
#: Seconds between two checks of the time limit and of `cancelled`.
POLL_S = 0.1
#: Seconds to wait for the end of all processes that the command started.
END_S = 10.0
NO_SANDBOX = "this machine cannot run commands in a sandbox"


class NoSandbox(ToolDenied):
    """The command was not run, because it could not be confined. `reason` is a sentence without a full stop."""

    def __init__(self, reason: str) -> None:
        super().__init__("sandbox_unavailable", f"Nothing was run: {reason}.")
        self.reason = reason


@dataclass
class CommandOutput:
    """The beginning and the end of a command's output."""

    size: int = 0
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)

    def add(self, data: bytes) -> None:
        self.size += len(data)
        room = max(HEAD - len(self.head), 0)
        self.head += data[:room]
        self.tail += data[room:]
        del self.tail[:-TAIL]

    def text(self) -> str:
        """Return the output as text, with a note in place of the omitted middle."""
        left_out = self.size - len(self.head) - len(self.tail)
        note = f"\n… [{left_out} bytes left out]\n".encode() if left_out else b""
        return (bytes(self.head) + note + bytes(self.tail)).decode(errors="replace")


@dataclass(frozen=True)
class CommandResult:
    """The exit code and the output of a command."""

    code: int
    #: Why the command was ended early; empty for a normal end.
    reason: str
    output: str
    is_truncated: bool


def run(
    argv: Sequence[str],
    root_fd: int,
    *,
    timeout_s: float,
    write: Callable[[str, str], None],
    cancelled: Callable[[], bool],
) -> CommandResult:
    """Run a command in the directory `root_fd` until it ends, its time is over, or `cancelled` returns True.

    On return, no process that the command started is left. If this process dies, the command is killed.
    `write(text, stream)` gets the output as it arrives. Raises `NoSandbox` if this machine cannot confine the command.
    """
    user = _user(root_fd)
    with tempfile.TemporaryDirectory(prefix="agentops-shell-") as scratch, _pipe() as (reading, report):
        if user is not None:
            os.chown(scratch, *user)
        try:
            spec = confinement.specification(
                argv, root_fd, scratch=scratch, user=user, timeout_s=timeout_s, report=report
            )
        except confinement.NoFilter as error:
            raise NoSandbox(f"{NO_SANDBOX}: {error}") from error
        process = subprocess.Popen(  # noqa: S603 - a shell is what was allowed, in its sandbox
            [sys.executable, "-I", "-S", str(LAUNCHER), json.dumps(spec)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[root_fd, report],
            env=confinement.environment(),
            start_new_session=True,
        )
        result = _follow(process, time.monotonic() + timeout_s, write, cancelled)
        if reason := _text_in(reading):
            raise NoSandbox(f"{NO_SANDBOX}: {reason}")
        return result


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    """Open a pipe, and yield its reading end, which does not block, and its writing end."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    try:
        yield reading, writing
    finally:
        os.close(reading)
        os.close(writing)


def _user(root_fd: int) -> tuple[int, int] | None:
    """Return the user and group that commands run as, if the worker runs as root: the owner of the agent's directory.

    Returns None if the worker is an ordinary user. Raises `NoSandbox` if root owns the directory.
    """
    if os.geteuid() != 0:
        return None
    owner = os.fstat(root_fd)
    if owner.st_uid == 0:
        raise NoSandbox(
            "the worker runs as the user root, who also owns the agent's directory; let an ordinary user own it"
        )
    return owner.st_uid, owner.st_gid


def _text_in(reading: int) -> str:
    """Return the text written to a pipe; empty if none was."""
    try:
        return os.read(reading, 4096).decode(errors="replace")
    except BlockingIOError:
        return ""


def _follow(
    process: subprocess.Popen[bytes], until: float, write: Callable[[str, str], None], cancelled: Callable[[], bool]
) -> CommandResult:
    """Pass on the output of a command until it ends or has to be ended. `until` is in monotonic seconds."""
    output, reason = CommandOutput(), ""
    with _Pipes(process, output, write) as pipes:
        try:
            while not reason and process.poll() is None:
                pipes.read(POLL_S)
                if time.monotonic() >= until:
                    reason = "its time is over"
                elif cancelled():
                    reason = "the run was stopped"
                elif output.size > MAX_WRITTEN:
                    reason = "it wrote too much"
        finally:
            code = _end(process)
        # Read the last output of the command.
        while pipes.are_open and pipes.read(0) and output.size <= MAX_WRITTEN:
            pass
    return CommandResult(code, reason, output.text(), output.size > HEAD + TAIL)


def _end(process: subprocess.Popen[bytes]) -> int:
    """End the command if it has not ended, and return its exit code. On return, none of its processes is left."""
    process.terminate()  # the launcher kills the first process of the namespaces, and waits for the end of all others
    try:
        return process.wait(END_S)
    except subprocess.TimeoutExpired:  # a process is blocked by a device or a file server
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


class _Pipes:
    """The standard output and the standard error of a command."""

    def __init__(
        self, process: subprocess.Popen[bytes], output: CommandOutput, write: Callable[[str, str], None]
    ) -> None:
        self._output, self._write = output, write
        self._selector = selectors.DefaultSelector()
        self._pipes: list[IO[bytes]] = []
        for pipe, name in ((process.stdout, "stdout"), (process.stderr, "stderr")):
            assert pipe is not None
            self._pipes.append(pipe)
            self._selector.register(pipe, selectors.EVENT_READ, (name, getincrementaldecoder("utf-8")("replace")))

    def __enter__(self) -> _Pipes:
        return self

    def __exit__(self, *_: Any) -> None:
        self._selector.close()
        for pipe in self._pipes:
            pipe.close()

    @property
    def are_open(self) -> bool:
        return bool(self._selector.get_map())

    def read(self, timeout_s: float) -> bool:
        """Read available output, waiting at most `timeout_s` seconds for it. Returns False if there was none."""
        if not self.are_open:
            time.sleep(timeout_s)
        ready = self._selector.select(timeout_s)
        for key, _ in ready:
            data = os.read(key.fd, 64 * 1024)
            name, decoder = key.data
            if not data:
                self._selector.unregister(key.fileobj)
                continue
            self._output.add(data)
            self._write(decoder.decode(data), name)
        return bool(ready)
