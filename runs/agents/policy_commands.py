"""Gates of policies: a command or a tool whose verdict says whether a run may count as done.

A gate must be repeatable: where its worker dies before
the verdict is written, the next one asks again. So a tool that may be called once is none.
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
from runs.tools import roots
from runs.tools.base import OutcomeUnknown, Tool, ToolContext, ToolDenied, ToolFailed
from runs.tools.catalogue import TOOLS
from runs.tools.timed_call import run_with_deadline

#: Bytes of what a gate said that are kept: the end of it, where the fault stands.
TAIL = 2_000
CHUNK = 64 * 1024
LOOK_S = 0.05
#: What a command that was asked to end may still take to let go of its pipe.
LEAVE_S = 5.0


class GateRefused(ValueError):
    """What `run` names is no gate here."""


@dataclass(frozen=True)
class CommandVerdict:
    passed: bool
    #: A few words: "exit 1".
    why: str
    output: str = ""


@dataclass(frozen=True)
class CommandInput:
    """What a gate is told."""

    #: Of the run, as far as a tool needs it.
    context: ToolContext
    trigger: str
    #: The agent's last word: the standard input of a command.
    answer: str


@dataclass(frozen=True)
class ToolGate:
    tool: Tool
    #: A JSON object as text; empty for none.
    arguments: str


@dataclass(frozen=True)
class CommandGate:
    argv: list[str]


def find(run: str) -> ToolGate | CommandGate:
    """What `run` names: `TOOL`, `TOOL {"its": "arguments"}`, or a command of this site. Raises `GateRefused`."""
    name, *rest = run.split(None, 1)
    tool = TOOLS.tool(name)
    if tool is None:
        return CommandGate(_argv(run))
    if tool.asks or tool.ends or tool.needs_approval:
        raise GateRefused(f"the tool {name!r} waits for somebody, or ends the run: it decides nothing")
    if tool.effect is Effect.AT_MOST_ONCE:
        raise GateRefused(f"the tool {name!r} may be called once, and a gate may be asked again after a crash")
    return ToolGate(tool, rest[0].strip() if rest else "")


def check(run: str, agent_settings: Mapping[str, Any]) -> None:
    """Refuse what `find` refuses, and a tool that could read nothing of this agent's."""
    gate = find(run)
    if isinstance(gate, ToolGate) and gate.tool.reads_files:
        try:
            roots.check([gate.tool.name], agent_settings)
        except roots.RootRefused as error:
            raise GateRefused(str(error)) from error


def ask(run: str, asked: CommandInput, watch: Callable[[], None]) -> CommandVerdict:
    """Run the gate and say what it decided; what is no gate here has not passed. `watch` is called often, and what it
    raises ends the gate."""
    try:
        gate = find(run)
    except GateRefused as refusal:
        return CommandVerdict(False, f"refused: {refusal}")
    return _ask_tool(gate, asked, watch) if isinstance(gate, ToolGate) else _ask_command(gate, asked, watch)


def _argv(run: str) -> list[str]:
    """The words of a command that this site allows. No shell reads them, so nothing in them is special."""
    try:
        argv = shlex.split(run)
    except ValueError as error:
        raise GateRefused(f"it cannot be split into words: {error}") from error
    if not argv:
        raise GateRefused("it names neither a tool nor a command")
    if argv[0] not in settings.AGENTOPS_GATE_COMMANDS:
        raise GateRefused(f"{argv[0][:100]!r} is neither a tool nor among this site's AGENTOPS_GATE_COMMANDS")
    if "\0" in run:
        raise GateRefused("a command has no NUL in it")
    return argv


def _ask_tool(gate: ToolGate, asked: CommandInput, watch: Callable[[], None]) -> CommandVerdict:
    try:
        result = run_with_deadline(gate.tool, asked.context, gate.arguments, watch)
    except (ToolFailed, ToolDenied) as error:
        return CommandVerdict(False, "the tool failed", _tail(str(error).encode(errors="replace")))
    except OutcomeUnknown as error:
        return CommandVerdict(False, "nobody knows what the tool came to", str(error)[:TAIL])
    output = result.output if isinstance(result.output, str) else ""
    why = "the tool answered with an error" if result.is_error else "the tool succeeded"
    return CommandVerdict(not result.is_error, why, _tail(output.encode(errors="replace")))


# --- Commands -------------------------------------------------------------------------------------------------------


def _ask_command(gate: CommandGate, asked: CommandInput, watch: Callable[[], None]) -> CommandVerdict:
    program = shutil.which(gate.argv[0])
    if program is None:
        return CommandVerdict(False, f"there is no program {gate.argv[0]!r} here")
    with contextlib.ExitStack() as stack:
        directory = _directory(asked.context.settings) or stack.enter_context(tempfile.TemporaryDirectory())
        # A file, not a pipe: a command that does not read shall not block us.
        said = stack.enter_context(tempfile.TemporaryFile())
        said.write(asked.answer.encode(errors="replace"))
        said.seek(0)
        try:
            process = subprocess.Popen(  # noqa: S603 - no shell, and a program that this site allows
                [program, *gate.argv[1:]], stdin=said, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                cwd=directory, env=_environment(asked), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return CommandVerdict(False, f"it cannot be started: {error.strerror}")
        return _watched(process, watch)


def _watched(process: subprocess.Popen[bytes], watch: Callable[[], None]) -> CommandVerdict:
    """Wait for its end, or end it and all that it started when its time is up or nobody wants its verdict."""
    assert process.stdout is not None
    tail = bytearray()
    reader = threading.Thread(target=_read, args=[process.stdout, tail], name="gate-output", daemon=True)
    reader.start()
    until = time.monotonic() + settings.AGENTOPS_GATE_TIMEOUT_S
    try:
        while not (ended := _ended(process)) and time.monotonic() < until:
            watch()
            time.sleep(LOOK_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reader.join(LEAVE_S)
        if not reader.is_alive():  # what has left its group may hold the pipe; the thread goes with it
            process.stdout.close()
    output = _tail(bytes(tail))
    code = process.returncode
    if not ended:
        return CommandVerdict(False, f"no answer within {settings.AGENTOPS_GATE_TIMEOUT_S:g} s", output)
    return CommandVerdict(code == 0, f"exit {code}" if code >= 0 else f"ended by signal {-code}", output)


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Looked at, not taken away: as long as it lies there, its number belongs to no other group of processes."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _read(pipe: IO[bytes], tail: bytearray) -> None:
    while chunk := os.read(pipe.fileno(), CHUNK):
        tail += chunk
        del tail[:-CHUNK]


def _environment(asked: CommandInput) -> dict[str, str]:
    """Nothing of ours: our own has the secrets of the site."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LANG": "C.UTF-8",
        "AGENTOPS_RUN_ID": asked.context.run_id,
        "AGENTOPS_STEP": str(asked.context.model_call),
        "AGENTOPS_TRIGGER": asked.trigger,
    }


def _directory(agent_settings: Mapping[str, Any]) -> str | None:
    """The agent's root, where it has one that agents may read on this site; a fresh directory otherwise."""
    try:
        allowed, way = roots.locate(agent_settings.get("root"))
    except roots.RootRefused:
        return None
    directory = allowed / way
    return str(directory) if directory.is_dir() else None


def _tail(output: bytes) -> str:
    text = output[-TAIL:].decode(errors="replace").strip()
    return f"…{text}" if len(output) > TAIL else text
