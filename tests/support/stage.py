"""One test's database, its worker processes, and the ledger of its tools."""

from __future__ import annotations

import signal
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agentops.accounts.models import Project
from runs.lifecycle import creation
from runs.models import Agent, AgentRun
from runs.statuses import RunStatus
from tests.support.child_processes import ChildProcess, ForkServer
from tests.support.databases import Databases, OwnRedis, reconnect
from tests.support.machine import ROOT
from tests.support.timing import eventually

QUICK = {"AGENTOPS_LEASE_S": "2", "AGENTOPS_RENEW_S": "0.5", "AGENTOPS_SWEEP_S": "0.5"}
#: Two steps with tools and an answer: every kind of effect, and a turn with two calls.
CALLS = [["ledger_idempotent", "ledger_read"], ["ledger_once"]]


class Effect(NamedTuple):
    """A line of the ledger."""

    run: str
    call_id: str
    key: str
    attempt: int
    epoch: int


@dataclass
class Stage:
    """One test's database, its workers, and its ledger."""

    fork_server: ForkServer
    databases: Databases
    name: str
    home: Path
    redis: OwnRedis | None = None
    workers: list[ChildProcess] = field(default_factory=list)

    STOP, CONT, TERM, KILL = signal.SIGSTOP, signal.SIGCONT, signal.SIGTERM, signal.SIGKILL

    @property
    def ledger(self) -> Path:
        return self.home / "ledger"

    def write_locked(self) -> bool:
        """Return whether another process holds the write lock. Only SQLite has one."""
        if self.databases.engine != "sqlite":
            return False
        with closing(sqlite3.connect(self.name, timeout=0.5)) as looked:
            try:
                looked.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
        return False

    def suspend(self, worker: ChildProcess) -> None:
        """Stop a worker, but not while it writes: on SQLite its lock would block all other writers."""
        worker.signal(self.STOP)
        for _ in range(50):
            eventually(worker.suspended, why="suspended")
            if not self.write_locked():
                return
            worker.signal(self.CONT)
            time.sleep(0.05)
            worker.signal(self.STOP)
        pytest.fail("it is always writing")

    def effects(self, call_id: str | None = None) -> list[Effect]:
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        words = [line.split(" ") for line in lines]
        found = [Effect(run, call, key, int(attempt), int(epoch)) for run, call, key, attempt, epoch in words]
        return [effect for effect in found if call_id in (None, effect.call_id)]

    def model_calls(self) -> list[int]:
        """Return the numbers of the model calls, in order."""
        path = Path(f"{self.ledger}.calls")
        return [int(line.split(" ")[0]) for line in path.read_text().splitlines()] if path.exists() else []

    def run(self, calls: Sequence[Sequence[str]] = CALLS, **options: Any) -> AgentRun:
        """Create a queued run of an agent that follows a script."""
        agent = self.agent(calls, **options)
        return creation.create(agent.project, agent, "Go.", by="test")

    def agent(
        self,
        calls: Sequence[Sequence[str]],
        *,
        slug: str = "",
        max_steps: int = 50,
        tools: Sequence[str] = (),
        policies: dict[str, Any] | None = None,
        **script: Any,
    ) -> Agent:
        """Create an agent that follows a script."""
        reconnect()
        project, _ = Project.objects.get_or_create(slug="crash", defaults={"name": "Crash"})
        # Run one call at a time, so that there is one crash window at a time.
        settings = {"calls": calls, "ledger": str(self.ledger), "parallel_tools": 1, **script}
        return Agent.objects.create(
            project=project,
            slug=slug or f"agent-{Agent.objects.count()}",
            provider="scripted",
            model="scripted-model",
            instructions="Follow the script.",
            tools=["ledger_read", "ledger_idempotent", "ledger_once", *tools],
            settings=settings,
            max_steps=max_steps,
            policies=policies or {},
        )

    def worker(self, chaos: str = "", *, slots: int = 4, **env: str) -> ChildProcess:
        argv = ["-A", "agentops", "worker", "--pool", "threads", "-c", str(slots)]
        argv += ["--beat"] if self.redis else []
        return self.spawn([*argv, "-n", f"w{len(self.workers)}@%h"], AGENTOPS_CHAOS=chaos, **env)

    def beat(self) -> ChildProcess:
        return self.spawn(["-A", "agentops", "beat", "--schedule", str(self.home / "beat")])

    def spawn(self, argv: list[str], *, program: str = "celery", **env: str) -> ChildProcess:
        path = self.home / f"process-{len(self.workers)}.log"
        whole = {
            **self.databases.env(self.name, self.home),
            **QUICK,
            "REDIS_URL": self.redis.url if self.redis else "",
            "DJANGO_SETTINGS_MODULE": "tests.support.process_settings",
            "AGENTOPS_PROCESS_NAME": "agentops-worker",
            **env,
        }
        pid = self.fork_server.ask(program=program, argv=argv, env=whole, cwd=str(ROOT), log=str(path))
        self.workers.append(ChildProcess(self.fork_server, pid, path))
        return self.workers[-1]

    def reaches(self, run: AgentRun, *statuses: RunStatus, within_s: float = 90) -> AgentRun:
        """Wait until the run has one of the statuses, and return it."""

        def look() -> bool:
            run.refresh_from_db()
            return run.status in statuses

        def where() -> str:
            return "\n".join([f"run is {run.status} ({run.status_reason})", *(w.said() for w in self.workers)])

        until = time.monotonic() + within_s
        while not look():
            if time.monotonic() > until:
                pytest.fail(f"no {'/'.join(statuses)} within {within_s:g} s: {where()}")
            time.sleep(0.03)
        return run

    def close(self) -> None:
        for worker in self.workers:
            worker.end()
