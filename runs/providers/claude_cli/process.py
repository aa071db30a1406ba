"""A process of Claude Code, with JSON lines in both directions. Ending it also ends all processes that it started."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentops.base.http.strict_json import FILE, NotJson, parse
from runs.providers.base import ProviderUnusable
from runs.providers.claude_cli import program_messages
from runs.providers.claude_cli.claude_provider import RUN_VARIABLE, SESSION_VARIABLE
from runs.providers.claude_cli.program_messages import SessionFailed

#: Maximum bytes of a line, for long outputs of tools.
MAX_LINE = 64 * 1024 * 1024
#: Unpaired surrogates are accepted, because the redactor replaces them later.
LIMITS = replace(FILE, lone_surrogates=True)
#: Seconds for the program to write its files once its input has ended, and to end after SIGTERM.
CLOSE_S = 5.0
#: Seconds between two checks whether a program that writes nothing has ended.
CHECK_S = 1.0
#: The same for a program whose end is expected.
EXIT_CHECK_S = 0.02
#: Number of lines of the standard error that are kept, for error messages.
STDERR_LINES = 40
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class CliProcess:
    """A running program. Its methods must be called on the event loop that started it."""

    def __init__(self, process: asyncio.subprocess.Process, marker: str) -> None:
        """`marker`: a variable and its value in the environment of the program and its child processes."""
        self._process, self._marker = process, marker
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self._errors = asyncio.ensure_future(self._read_stderr())

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> CliProcess:
        """Start the program in a new process group. Raises `ProviderUnusable` if it cannot be started."""
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=-1,
                stdout=-1,
                stderr=-1,
                env=dict(environment),
                cwd=folder,
                limit=MAX_LINE,
                start_new_session=True,
                preexec_fn=_end_with_worker,
            )
        except OSError as error:
            raise ProviderUnusable(f"the program {command[0]!r} cannot be started: {error.strerror}") from error
        return cls(process, f"{SESSION_VARIABLE}={environment[SESSION_VARIABLE]}")

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    async def send(self, message: Mapping[str, Any]) -> None:
        """Write a message. Does nothing if the program has ended, which the next `read` reports."""
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            await self._process.stdin.drain()

    async def read(self) -> dict[str, Any]:
        """Return the next message. Raises `SessionFailed` at the end of the output, and for invalid JSON."""
        while True:
            try:
                line = await self._line()
            except ValueError:
                raise SessionFailed("session_broken", f"the program wrote a line of over {MAX_LINE} bytes") from None
            if not line.endswith(b"\n"):  # the end of the output, possibly after an incomplete line
                status = await self._exit_status()
                await asyncio.wait([self._errors], timeout=CHECK_S)
                raise program_messages.failure_of_exit(status, "\n".join(self._stderr))
            if line.startswith(b"{"):
                return _message(line)

    async def _line(self) -> bytes:
        """Return the next line, or an incomplete or empty one at the end of the output.

        Child processes may keep the output open after the program has ended. They are then killed.
        """
        assert self._process.stdout is not None
        has_ended = False
        while True:
            try:
                async with asyncio.timeout(CHECK_S):
                    return await self._process.stdout.readline()
            except TimeoutError:
                if has_ended:
                    return b""
                if has_ended := not self.is_alive:
                    await self._kill_marked()

    async def _exit_status(self) -> int:
        # `wait` would also wait for the end of the output, and so for child processes that keep it open.
        while (status := self._process.returncode) is None:
            await asyncio.sleep(EXIT_CHECK_S)
        return status

    async def close(self) -> None:
        """End the program and its child processes. At the end of its input, the program writes its files and ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if not await self._ends():
            self._signal(signal.SIGTERM)
            await self._ends()
        await self.kill()

    async def kill(self) -> None:
        """Kill the process group at once, and child processes outside of it."""
        self._signal(signal.SIGKILL)
        await self._kill_marked()
        await self._exit_status()
        self._errors.cancel()

    async def _kill_marked(self) -> None:
        await asyncio.to_thread(kill_marked, self._marker)

    async def _ends(self) -> bool:
        """Wait for the end of the program, at most `CLOSE_S`, and return whether it has ended.

        During the wait its output is read, because a full pipe would block it.
        """
        reading = asyncio.ensure_future(self._read_rest())
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._exit_status()
        except TimeoutError:
            return False
        finally:
            reading.cancel()
        return True

    async def _read_rest(self) -> None:
        assert self._process.stdout is not None
        while await self._process.stdout.read(65_536):
            pass

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    async def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        with contextlib.suppress(ValueError):  # a line that is too long
            async for line in self._process.stderr:
                self._stderr.append(line.decode(errors="replace").rstrip())


def _message(line: bytes) -> dict[str, Any]:
    try:
        message = parse(line, LIMITS)
    except NotJson as error:
        raise SessionFailed("session_broken", f"the program wrote a line that is not JSON: {error}") from None
    assert isinstance(message, dict)
    return message


def _end_with_worker() -> None:
    """Request that the kernel kills the program if the worker dies. Called in the child process before the start."""
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def kill_leftovers(run_id: str) -> int:
    """Kill the processes of a run that an earlier worker of this machine has left behind. Returns their number.

    The kernel kills the program together with its worker, but not the program's child processes.
    """
    return kill_marked(f"{RUN_VARIABLE}={run_id}")


def kill_marked(marker: str) -> int:
    """Kill the processes of this machine whose environment contains `marker`, `NAME=value`. Returns their number."""
    if sys.platform != "linux":
        return 0
    killed = 0
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if marker.encode() in Path(entry.path, "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
                killed += 1
    return killed
