"""Gates of policies: commands and tools that decide whether a run is done.

Gates must be repeatable: if a worker dies before the verdict is saved, the next worker runs the gate again.
Tools with the effect at_most_once are therefore rejected.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any

from django.conf import settings

from runs.statuses import Effect
from runs.tools import rooted_files
from runs.tools.base import OutcomeUnknown, Tool, ToolContext, ToolDenied, ToolFailed
from runs.tools.call_limits import run_with_deadline
from runs.tools.catalogue import TOOLS

#: How much of the end of a gate's output is kept: errors are usually at the end.
MAX_OUTPUT_BYTES = 2_000
#: Bytes read from a command's output at a time, and kept while it runs.
CHUNK = 64 * 1024
POLL_INTERVAL_S = 0.05
#: How long to wait for the output pipe of a killed command to close.
PIPE_CLOSE_TIMEOUT_S = 5.0


class GateRefused(ValueError):
    """`run` names neither a repeatable tool nor a command that this site allows."""


@dataclass(frozen=True)
class GateVerdict:
    """The result of a gate."""

    passed: bool
    #: For example "exit 1".
    reason: str
    output: str = ""


@dataclass(frozen=True)
class GateInput:
    """The input of a gate."""

    context: ToolContext
    trigger: str
    #: The agent's last answer, which a command reads from standard input.
    answer: str


@dataclass(frozen=True)
class ToolGate:
    """A gate that calls a tool."""

    tool: Tool
    #: A JSON object as text. Empty: no arguments.
    arguments: str


@dataclass(frozen=True)
class CommandGate:
    """A gate that runs a command, without a shell."""

    argv: list[str]


def resolve(run: str) -> ToolGate | CommandGate:
    """Return the gate that `run` names: `TOOL`, `TOOL {"its": "arguments"}` or a command. Raises `GateRefused`."""
    name, *rest = run.split(None, 1)
    tool = TOOLS.get(name)
    if tool is None:
        return CommandGate(_argv(run))
    if tool.asks or tool.ends or tool.spawns or tool.needs_approval:
        raise GateRefused(f"the tool {name!r} waits for a person or ends the run, so it cannot be a gate")
    if tool.effect is Effect.AT_MOST_ONCE:
        raise GateRefused(f"the tool {name!r} has the effect at_most_once, and a gate may run again after a crash")
    return ToolGate(tool, rest[0].strip() if rest else "")


def check(run: str, agent_settings: Mapping[str, Any]) -> None:
    """Raise `GateRefused` if `run` is not a gate, or names a file tool and the agent has no allowed root."""
    gate = resolve(run)
    if isinstance(gate, ToolGate) and gate.tool.reads_files:
        try:
            rooted_files.check_root([gate.tool.name], agent_settings)
        except rooted_files.RootRefused as error:
            raise GateRefused(str(error)) from error


def execute(run: str, gate_input: GateInput, watch: Callable[[], None]) -> GateVerdict:
    """Run a gate and return its verdict. An invalid gate does not pass.

    `watch` is called about every 50 ms while a command runs. If it raises an exception, the command is killed.
    """
    try:
        gate = resolve(run)
    except GateRefused as refusal:
        return GateVerdict(False, f"refused: {refusal}")
    return _run_tool(gate, gate_input, watch) if isinstance(gate, ToolGate) else _run_command(gate, gate_input, watch)


def _argv(run: str) -> list[str]:
    """Split a command into arguments, without a shell. Raises `GateRefused` if AGENTOPS_GATE_COMMANDS lacks it."""
    try:
        argv = shlex.split(run)
    except ValueError as error:
        raise GateRefused(f"it cannot be split into words: {error}") from error
    if not argv:
        raise GateRefused("it names neither a tool nor a command")
    if argv[0] not in settings.AGENTOPS_GATE_COMMANDS:
        raise GateRefused(f"{argv[0][:100]!r} is neither a tool nor a program listed in AGENTOPS_GATE_COMMANDS")
    if "\0" in run:
        raise GateRefused("the command contains a NUL character")
    return argv


def _run_tool(gate: ToolGate, gate_input: GateInput, watch: Callable[[], None]) -> GateVerdict:
    """Call the tool, and return whether it succeeded."""
    try:
        result = run_with_deadline(gate.tool, gate_input.context, gate.arguments, watch)
    except (ToolFailed, ToolDenied) as error:
        return GateVerdict(False, "the tool failed", _tail(str(error).encode(errors="replace")))
    except OutcomeUnknown as error:
        return GateVerdict(False, "the outcome of the tool is unknown", str(error)[:MAX_OUTPUT_BYTES])
    output = result.output if isinstance(result.output, str) else ""
    reason = "the tool returned an error" if result.is_error else "the tool succeeded"
    return GateVerdict(not result.is_error, reason, _tail(output.encode(errors="replace")))


def _run_command(gate: CommandGate, gate_input: GateInput, watch: Callable[[], None]) -> GateVerdict:
    """Run the command in the agent's root, or in a temporary directory, and return whether it succeeded."""
    program = shutil.which(gate.argv[0])
    if program is None:
        return GateVerdict(False, f"the program {gate.argv[0]!r} was not found on the worker")
    with contextlib.ExitStack() as stack:
        directory = _directory(gate_input.context.settings) or stack.enter_context(tempfile.TemporaryDirectory())
        # A file and not a pipe, so that a command that does not read its input does not block the worker.
        stdin_file = stack.enter_context(tempfile.TemporaryFile())
        stdin_file.write(gate_input.answer.encode(errors="replace"))
        stdin_file.seek(0)
        try:
            process = subprocess.Popen(  # noqa: S603 - no shell, and a program that this site allows
                [program, *gate.argv[1:]],
                stdin=stdin_file,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env=_environment(gate_input),
                start_new_session=True,
            )
        except OSError as error:
            return GateVerdict(False, f"it cannot be started: {error.strerror}")
        return _wait_watching(process, watch)


def _wait_watching(process: subprocess.Popen[bytes], watch: Callable[[], None]) -> GateVerdict:
    """Wait for the command and return its verdict. Kill its process group at the time limit, or if `watch` raises."""
    assert process.stdout is not None
    tail = bytearray()
    reader = threading.Thread(target=_read, args=[process.stdout, tail], name="gate-output", daemon=True)
    reader.start()
    until = time.monotonic() + settings.AGENTOPS_GATE_TIMEOUT_S
    try:
        while not (ended := _has_ended(process)) and time.monotonic() < until:
            watch()
            time.sleep(POLL_INTERVAL_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reader.join(PIPE_CLOSE_TIMEOUT_S)
        if not reader.is_alive():  # a process that left the group may still hold the pipe open
            process.stdout.close()
    output = _tail(bytes(tail))
    code = process.returncode
    if not ended:
        return GateVerdict(False, f"no answer within {settings.AGENTOPS_GATE_TIMEOUT_S:g} s", output)
    return GateVerdict(code == 0, f"exit {code}" if code >= 0 else f"ended by signal {-code}", output)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether the process has ended, without reaping it: its pid must not be reused before killpg()."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _read(pipe: IO[bytes], tail: bytearray) -> None:
    """Read the output until its end, and keep the last bytes in `tail`."""
    while chunk := os.read(pipe.fileno(), CHUNK):
        tail += chunk
        del tail[:-CHUNK]


def _environment(gate_input: GateInput) -> dict[str, str]:
    """Return the environment of a command. It has only the PATH of the worker's, which contains secrets."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LANG": "C.UTF-8",
        "AGENTOPS_RUN_ID": gate_input.context.run_id,
        "AGENTOPS_STEP": str(gate_input.context.model_call),
        "AGENTOPS_TRIGGER": gate_input.trigger,
    }


def _directory(agent_settings: Mapping[str, Any]) -> str | None:
    """Return the agent's root if AGENTOPS_TOOL_ROOTS allows it, else None."""
    try:
        allowed, relative = rooted_files.locate_root(agent_settings.get("root"))
    except rooted_files.RootRefused:
        return None
    directory = allowed / relative
    return str(directory) if directory.is_dir() else None


def _tail(output: bytes) -> str:
    text = output[-MAX_OUTPUT_BYTES:].decode(errors="replace").strip()
    return f"…{text}" if len(output) > MAX_OUTPUT_BYTES else text
