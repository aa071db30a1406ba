"""Workers, beats and web processes as children of a process that forks quickly, and the crash points that end them.

Crash points are listed in the order of their execution in a step (runs/chaos.py has all). Imports nothing from Django.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.machine import ROOT
from tests.support.timing import eventually


class ForkServer:
    """The process that forks the workers; see programs/fork_server.py."""

    def __init__(self, *program: str) -> None:
        """Start it. `program`: other arguments of Python, for a program that reads the same kind of orders."""
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, *(program or [str(Path(__file__).parent / "programs/fork_server.py")])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={"PATH": os.environ["PATH"]},
        )
        self._ready = False

    def ask(self, **order: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            if not self._ready:
                assert self._process.stdout.readline() == '"ready"\n'
                self._ready = True
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


@dataclass
class ChildProcess:
    """A worker, a beat or a web process."""

    fork_server: ForkServer
    pid: int
    log: Path

    @property
    def exit_code(self) -> int | None:
        """The exit code: None while the process runs, negative for the signal that ended it."""
        code: int | None = self.fork_server.ask(poll=self.pid)
        return code

    @property
    def alive(self) -> bool:
        return self.exit_code is None

    def signal(self, number: signal.Signals) -> None:
        assert self.alive, f"process {self.pid} has ended already; see {self.log}"
        os.kill(self.pid, number)

    def wait(self, *, within_s: float, why: str) -> int:
        """Wait for the end of the process, and return its exit code."""
        eventually(lambda: self.exit_code is not None, within_s=within_s, why=f"{why}\n{self.said()}")
        assert self.exit_code is not None
        return self.exit_code

    def killed(self, *, within_s: float = 20) -> None:
        """Wait until SIGKILL has ended the process. Fail if it survives or ends differently."""
        assert self.wait(within_s=within_s, why="killed at its crash point") == -signal.SIGKILL, self.said()

    def suspended(self) -> bool:
        """Return whether SIGSTOP has stopped the process."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].startswith("T")

    def said(self, lines: int = 60) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return f"--- {self.log.name}\n" + "\n".join(text.splitlines()[-lines:])

    def end(self) -> None:
        if self.alive:
            os.kill(self.pid, signal.SIGKILL)
            eventually(lambda: not self.alive, why="a killed process ends")


#: Points before the step's commit. Work after the other points belongs to the last committed step.
BEFORE_THE_COMMIT = (
    "model.before_start",
    "model.before_call",
    "model.streaming",
    "model.answered",
    "turn.in_transaction",
    "turn.commit_sent",
)
IN_A_STEP = (
    *BEFORE_THE_COMMIT,
    "turn.committed",
    "hooks.before",
    "hooks.decided",
    "tool.before_start",
    "tool.marked_running",
    "tool.running",
    "tool.returned",
    "result.in_transaction",
    "result.committed",
    "tool.next",
    "checkpoint.before",
    "checkpoint.in_transaction",
    "checkpoint.committed",
    "end.before",
    "end.in_transaction",
    "end.committed",
)
#: Points at which no transaction of the run is open: if the worker dies here, another can claim the run at once.
OUTSIDE_TRANSACTIONS = (
    "claim.committed",
    "model.before_start",
    "model.before_call",
    "model.streaming",
    "model.answered",
    "turn.commit_sent",
    "turn.committed",
    "hooks.before",
    "hooks.decided",
    "tool.before_start",
    "tool.marked_running",
    "tool.returned",
    "result.committed",
    "tool.next",
    "checkpoint.before",
    "checkpoint.committed",
    "end.before",
)
#: The points tested on SQLite: between two transactions, within one, and around the effect of a tool. A site on SQLite
#: has a single process, so only PostgreSQL is tested at all points.
ON_SQLITE = (
    "claim.committed",
    "model.answered",
    "turn.in_transaction",
    "turn.committed",
    "tool.returned",
    "checkpoint.in_transaction",
)
