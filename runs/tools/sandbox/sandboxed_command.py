"""Runs a command in the sandbox: its environment, its limits, its output, and its end."""

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from runs.tools.base import ToolDenied

LAUNCHER = Path(__file__).with_name("launcher.py")
#: What commands may read besides the root: programs and libraries, and no configuration with secrets.
READABLE = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/group", "/etc/ld.so.cache",
    "/etc/localtime", "/etc/mime.types", "/etc/nsswitch.conf", "/etc/passwd", "/etc/ssl/certs", "/dev/random",
    "/dev/urandom", "/dev/zero",
)  # fmt: skip
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MIB = 1024 * 1024
LIMITS = {
    "RLIMIT_AS": 4096 * MIB, "RLIMIT_CORE": 0, "RLIMIT_FSIZE": 1024 * MIB, "RLIMIT_NOFILE": 512, "RLIMIT_NPROC": 128,
}  # fmt: skip
#: Bytes of the output that are kept: from the beginning and from the end.
HEAD, TAIL = 192 * 1024, 64 * 1024
#: Bytes after which a command that does not stop writing is ended.
MAX_WRITTEN = 64 * MIB
POLL_S = 0.1
#: Seconds to wait for output after the end: a process that escaped may hold the pipe open.
DRAIN_S = 1.0


@dataclass
class CommandOutput:
    """The beginning and the end of what a command has written."""

    size: int = 0
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)

    def add(self, data: bytes) -> None:
        self.size += len(data)
        room = HEAD - len(self.head)
        self.head += data[: max(room, 0)]
        self.tail += data[max(room, 0) :]
        del self.tail[:-TAIL]

    def text(self) -> str:
        """Return the output as text, with a note in place of what is left out."""
        left_out = self.size - len(self.head) - len(self.tail)
        note = f"\n… [{left_out} bytes left out]\n".encode() if left_out else b""
        return (bytes(self.head) + note + bytes(self.tail)).decode(errors="replace")


@dataclass(frozen=True)
class Ended:
    """How a command ended. `reason` says why it was ended early; empty if it ended by itself."""

    code: int
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
) -> Ended:
    """Run a command in the directory `root_fd` until it ends, its time is over, or `cancelled` returns True.

    Then all processes that it has started are killed. `write(text, stream)` gets the output when it comes.
    Raises `ToolDenied` if this machine has no sandbox.
    """
    user = _user(root_fd)
    with tempfile.TemporaryDirectory(prefix="agentops-shell-") as scratch:
        if user is not None:
            os.chown(scratch, *user)
        spec = {
            "argv": list(argv), "root_fd": root_fd, "writable": [scratch], "readable": READABLE, "user": user,
            "limits": LIMITS | {"RLIMIT_CPU": int(timeout_s) + 1},
        }  # fmt: skip
        process = subprocess.Popen(  # noqa: S603 - a shell is what was allowed, in its sandbox
            [sys.executable, "-I", "-S", str(LAUNCHER), json.dumps(spec)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=[root_fd],
            env=_environment(scratch), start_new_session=True,
        )  # fmt: skip
        return _follow(process, time.monotonic() + timeout_s, write, cancelled)


def _user(root_fd: int) -> tuple[int, int] | None:
    """Return the user for the commands of a worker that is root: the owner of the agent's root."""
    if os.geteuid() != 0:
        return None
    owner = os.fstat(root_fd)
    if owner.st_uid == 0:
        reason = "the worker runs as root, and the agent's root belongs to root; let it belong to an ordinary user"
        raise ToolDenied("sandbox_unavailable", f"Nothing was run: {reason}.")
    return owner.st_uid, owner.st_gid


def _environment(scratch: str) -> dict[str, str]:
    """Return the environment of a command. The worker's own is not passed on, because it contains secrets."""
    return {
        "PATH": PATH, "LANG": "C.UTF-8", "HOME": scratch, "TMPDIR": scratch, "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "agent", "GIT_AUTHOR_EMAIL": "agent@localhost",
        "GIT_COMMITTER_NAME": "agent", "GIT_COMMITTER_EMAIL": "agent@localhost",
    }  # fmt: skip


def _follow(
    process: subprocess.Popen[bytes], until: float, write: Callable[[str, str], None], cancelled: Callable[[], bool]
) -> Ended:
    output, reason = CommandOutput(), ""
    with _Pipes(process, output, write) as pipes:
        try:
            while not (reason or _has_ended(process)):
                pipes.read(POLL_S)
                if time.monotonic() >= until:
                    reason = "its time is over"
                elif cancelled():
                    reason = "the run was stopped"
                elif output.size > MAX_WRITTEN:
                    reason = "it wrote too much"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        drained = time.monotonic() + DRAIN_S
        while pipes.are_open and time.monotonic() < drained and output.size <= MAX_WRITTEN:
            pipes.read(POLL_S)
    return Ended(code, reason, output.text(), output.size > HEAD + TAIL)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether the process has ended, without reaping it: its pid must not be reused before killpg()."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


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

    def read(self, timeout_s: float) -> None:
        """Read what there is, and wait for it at most so long."""
        if not self.are_open:
            time.sleep(timeout_s)
        for key, _ in self._selector.select(timeout_s):
            data = os.read(key.fd, 64 * 1024)
            name, decoder = key.data
            if not data:
                self._selector.unregister(key.fileobj)
                continue
            self._output.add(data)
            self._write(decoder.decode(data), name)
