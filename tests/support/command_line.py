"""The command-line program, `agentops worker`, and sites of `agentops up`, each with a separate home and port.

The processes are real. Loads no settings when it is imported.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx

from tests.support.machine import ROOT, free_port
from tests.support.timing import eventually

#: Makes 5 model calls and 10 tool calls, then completes.
DEFINITION = {"agent_id": "player", "provider": "fixture", "model": "claude-code-5c", "tools": ["recorded"]}
Command = Callable[..., str]
Process = Callable[[list[str], dict[str, str]], tuple[int, str, str]]


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


PLAYED = {"claude-code-5c": ("completed", 5), "claude-code-7e": ("completed", 24), "claude-code-b6": ("completed", 219)}


MANAGE = [sys.executable, str(ROOT / "manage.py")]
#: Printed for root, because some machines run the tests as root.
ROOT_WARNING = "agentops: warning: running as root: an ordinary user is enough, and safer\n"


@dataclass
class Site:
    """A home directory, and the process that serves it, if one runs."""

    home: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    command: list[str] = field(default_factory=lambda: MANAGE)
    subcommand: str = "up"

    def env(self, **more: str) -> dict[str, str]:
        """Return an environment without the variables of the shell or the suite that would change a site."""
        return {"PATH": os.environ["PATH"], "AGENTOPS_HOME": str(self.home), "PORT": str(self.port)} | more

    def start(self, **more: str) -> Site:
        """Start the site without waiting until it responds."""
        self.starts += 1
        with self._file("out").open("wb") as out, self._file("err").open("wb") as err:
            self.process = subprocess.Popen(
                [*self.command, self.subcommand],
                cwd=self.home.parent,
                env=self.env(**more),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        return self

    def up(self, **more: str) -> Site:
        """Start the site, and wait until it prints that it is ready."""
        self.start(**more)
        # In a new environment every module is compiled first.
        eventually(
            lambda: self.out.count("\n") >= 3 or not self.alive, within_s=240, why=lambda: f"it is up: {self.err}"
        )
        assert self.alive, self.err
        return self

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def out(self) -> str:
        return self._file("out").read_text()

    @property
    def err(self) -> str:
        return self._file("err").read_text().removeprefix(ROOT_WARNING)

    @property
    def password(self) -> str | None:
        found = re.search(r"^Password: (\S+)$", self.out, re.MULTILINE)
        return found[1] if found else None

    def send(self, number: signal.Signals) -> None:
        assert self.alive, self.err
        os.kill(self.pid, number)

    def ended(self, within_s: float = 60) -> int:
        assert self.process is not None
        return self.process.wait(within_s)

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        """Send a signal, and return the exit code."""
        self.send(number)
        return self.ended()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(60)

    def agentops(self, *words: str) -> str:
        """Run another command in this home, and return its output."""
        done = subprocess.run(
            [*self.command, *words],
            env=self.env(),
            cwd=self.home.parent,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def signed_in(self, password: str) -> Iterator[httpx.Client]:
        """Return a client that has signed in with the password form."""
        with httpx.Client(base_url=self.url, timeout=20) as client:
            found = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', client.get("/login").text)
            assert found is not None
            form = {"username": "admin", "password": password, "csrfmiddlewaretoken": found[1]}
            assert client.post("/login", data=form, headers={"Origin": str(client.base_url)}).status_code == 302
            yield client

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Query the database directly. Return no rows if there are no tables yet."""
        path = self.home / "agentops.sqlite3"
        if not path.exists():
            return []
        with closing(sqlite3.connect(path, timeout=20)) as database:
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'agent_runs'").fetchall():
                return []
            return database.execute(sql, values).fetchall()

    def run_of(self, agent_id: str) -> UUID:
        """Return the ID of the only run of this agent."""
        sql = "SELECT r.id FROM agent_runs r JOIN runs_agent a ON a.id = r.agent_id WHERE a.slug = ?"
        [(run_id,)] = self.rows(sql, agent_id)
        return UUID(run_id)

    def runs(self) -> dict[str, tuple[str, int]]:
        """Return the status and the number of steps of each run, by agent."""
        sql = "SELECT slug, status, step_count FROM agent_runs JOIN runs_agent ON runs_agent.id = agent_id"
        return {slug: (status, steps) for slug, status, steps in self.rows(sql)}

    def _file(self, name: str) -> Path:
        return self.home.with_name(f"{self.home.name}-{self.starts}.{name}")
