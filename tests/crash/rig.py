"""The rig of the crash tests: a database of its own for each test, real workers on it, and what must hold after.

The test's process looks at the same database through the ORM; nothing of the product knows of any of this.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import psycopg
import pytest
import redis
from celery import Celery
from django.db import OperationalError, connection, connections

from agentops.projects.models import Project
from runs.lifecycle import creation
from runs.models import Agent, AgentRun, AgentRunMessage, AgentRunToolCall
from runs.statuses import RESOLVED, RunStatus
from runs.upkeep import invariants
from timeline import log
from timeline.models import Event

T = TypeVar("T")
ROOT = Path(__file__).resolve().parent.parent.parent
KEY = "for-the-crash-tests-and-nothing-else-0123456789-abcdef"
QUICK = {"AGENTOPS_LEASE_S": "2", "AGENTOPS_RENEW_S": "0.5", "AGENTOPS_SWEEP_S": "0.5"}
#: Two steps with tools and an answer: every effect is met, and a turn with two calls.
CALLS = [["ledger_idempotent", "ledger_read"], ["ledger_once"]]


def eventually(what: Callable[[], T], *, within_s: float, why: str) -> T:
    """The first true answer; fails with `why` when there is none in time."""
    until = time.monotonic() + within_s
    while not (answer := what()):
        if time.monotonic() > until:
            pytest.fail(f"not within {within_s:g} s: {why}")
        time.sleep(0.03)
    return answer


def missing(what: str) -> None:
    if os.environ.get("REQUIRE_SERVICES") == "1":
        pytest.fail(f"{what}, and REQUIRE_SERVICES=1 forbids skipping", pytrace=False)
    pytest.skip(what)


# --- Processes --------------------------------------------------------------------------------------------------


class Nursery:
    """The process that forks the workers; see nursery.py."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("nursery.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env={"PATH": os.environ["PATH"]},
        )  # fmt: skip
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
class Celeried:
    """A worker, a beat or a web process: a process of its own."""

    nursery: Nursery
    pid: int
    log: Path

    @property
    def exit_code(self) -> int | None:
        """None while it lives; the negative number of the signal that ended it."""
        code: int | None = self.nursery.ask(poll=self.pid)
        return code

    @property
    def alive(self) -> bool:
        return self.exit_code is None

    def signal(self, number: signal.Signals) -> None:
        assert self.alive, f"process {self.pid} has ended already; see {self.log}"
        os.kill(self.pid, number)

    def wait(self, *, within_s: float, why: str) -> int:
        """Its exit code."""
        eventually(lambda: self.exit_code is not None, within_s=within_s, why=f"{why}\n{self.said()}")
        assert self.exit_code is not None
        return self.exit_code

    def killed(self, *, within_s: float = 20) -> None:
        """Waits until it has been ended by SIGKILL; fails where it lives on, or ended in another way."""
        assert self.wait(within_s=within_s, why="killed at its crash point") == -signal.SIGKILL, self.said()

    def suspended(self) -> bool:
        """Whether SIGSTOP has stopped it."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].startswith("T")

    def said(self, lines: int = 60) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return f"--- {self.log.name}\n" + "\n".join(text.splitlines()[-lines:])

    def end(self) -> None:
        if self.alive:
            os.kill(self.pid, signal.SIGKILL)
            eventually(lambda: not self.alive, within_s=10, why="a killed process ends")


class OwnRedis:
    """A Redis server that a test may kill."""

    def __init__(self, directory: Path, port: int | None = None) -> None:
        self._directory = directory
        with socket.socket() as free:
            free.bind(("127.0.0.1", port or 0))
            self.port = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if shutil.which("redis-server") is None:
            missing("there is no redis-server to start")
        self._process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
             "--dir", str(self._directory)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        eventually(self._answers, within_s=10, why="Redis answers")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def suspend(self) -> None:
        """It holds its connections and answers nobody."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def hint(self, run_id: UUID, times: int = 1) -> None:
        """What a web process does after it has committed a queued run."""
        with Celery("hints", broker=self.url) as app:
            for _ in range(times):
                app.send_task("runs.advance", args=[str(run_id)], queue="agentops", retry=False)

    def _answers(self) -> bool:
        with redis.Redis.from_url(self.url, socket_connect_timeout=1) as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False


# --- Databases --------------------------------------------------------------------------------------------------


@contextmanager
def looking_at(name: str) -> Iterator[None]:
    """Point this process's ORM at another database of the same engine."""
    old = connections.settings["default"]["NAME"]

    def switch(to: str) -> None:
        connection.close()
        if hasattr(connection, "close_pool"):
            connection.close_pool()
        connections.settings["default"]["NAME"] = to
        connection.settings_dict["NAME"] = to

    switch(name)
    try:
        yield
    finally:
        switch(old)


def reconnect() -> None:
    """Opening a SQLite file whose last user has just died or left can fail for a moment, whatever the busy timeout."""
    for _ in range(20):
        try:
            return connection.ensure_connection()
        except OperationalError:
            time.sleep(0.1)
    return connection.ensure_connection()


class Databases:
    """Makes databases for tests from one that was migrated once."""

    def __init__(self, engine: str, directory: Path) -> None:
        self.engine = engine
        self._directory = directory
        self._count = 0
        self._prefix = f"crash_{os.getpid()}_{os.urandom(3).hex()}"
        self._template = self._name()
        if engine == "postgres":
            self._server(f'CREATE DATABASE "{self._template}"')
        manage = [sys.executable, "manage.py", "migrate", "--verbosity", "0"]
        subprocess.run(manage, cwd=ROOT, env=self.env(self._template, directory), check=True, timeout=120)

    def env(self, name: str, home: Path) -> dict[str, str]:
        """The environment of a process on the database `name`, without what a developer's shell may hold."""
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "AGENTOPS_HOME": str(home),
            "AGENTOPS_TESTING": "1",
            "SECRET_KEY": KEY,
            "DATABASE_URL": self._url(name),
        }

    @contextmanager
    def fresh(self) -> Iterator[str]:
        name = self._name()
        if self.engine == "postgres":
            self._server(f'CREATE DATABASE "{name}" TEMPLATE "{self._template}"')
        else:
            shutil.copyfile(self._template, name)
        try:
            yield name
        finally:
            self.drop(name)

    def drop(self, name: str) -> None:
        if self.engine == "postgres":
            self._server(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        else:
            for each in Path(name).parent.glob(f"{Path(name).name}*"):
                each.unlink()

    def close(self) -> None:
        self.drop(self._template)

    def _name(self) -> str:
        self._count += 1
        name = f"{self._prefix}_{self._count}"
        return name if self.engine == "postgres" else str(self._directory / f"{name}.sqlite3")

    def _url(self, name: str) -> str:
        if self.engine == "sqlite":
            return f"sqlite:///{name}"
        return urlunsplit(urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}"))

    def server_url(self) -> str:
        return os.environ["DATABASE_URL"]

    def _server(self, statement: str) -> None:
        with psycopg.connect(self.server_url(), autocommit=True, connect_timeout=5) as server:
            server.execute(statement)  # type: ignore[arg-type]


# --- What happened ----------------------------------------------------------------------------------------------


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

    nursery: Nursery
    databases: Databases
    name: str
    home: Path
    redis: OwnRedis | None = None
    workers: list[Celeried] = field(default_factory=list)

    STOP, CONT, TERM, KILL = signal.SIGSTOP, signal.SIGCONT, signal.SIGTERM, signal.SIGKILL

    @property
    def ledger(self) -> Path:
        return self.home / "ledger"

    def write_locked(self) -> bool:
        """Whether somebody keeps everyone else from writing, as only SQLite has it."""
        if self.databases.engine != "sqlite":
            return False
        with closing(sqlite3.connect(self.name, timeout=0.5)) as looked:
            try:
                looked.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
        return False

    def effects(self, call_id: str | None = None) -> list[Effect]:
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        words = [line.split(" ") for line in lines]
        found = [Effect(run, call, key, int(attempt), int(epoch)) for run, call, key, attempt, epoch in words]
        return [effect for effect in found if call_id in (None, effect.call_id)]

    def model_calls(self) -> list[int]:
        """The numbers of the model calls that were made, in order."""
        path = Path(f"{self.ledger}.calls")
        return [int(line.split(" ")[0]) for line in path.read_text().splitlines()] if path.exists() else []

    def run(self, calls: Sequence[Sequence[str]] = CALLS, *, max_steps: int = 50, **script: Any) -> AgentRun:
        """A queued run of an agent that follows a script."""
        reconnect()
        project, _ = Project.objects.get_or_create(slug="crash", defaults={"name": "Crash"})
        settings = {"calls": calls, "ledger": str(self.ledger), **script}
        agent = Agent.objects.create(
            project=project, slug=f"agent-{Agent.objects.count()}", provider="scripted", model="scripted-model",
            instructions="Follow the script.", tools=["ledger_read", "ledger_idempotent", "ledger_once"],
            settings=settings, max_steps=max_steps,
        )  # fmt: skip
        return creation.create(project, agent, "Go.", by="test")

    def worker(self, chaos: str = "", **env: str) -> Celeried:
        argv = ["-A", "agentops", "worker", "--pool", "threads", "-c", "4", "--without-mingle", "--without-gossip"]
        return self.spawn([*argv, "-n", f"w{len(self.workers)}@%h"], AGENTOPS_CHAOS=chaos, **env)

    def beat(self) -> Celeried:
        return self.spawn(["-A", "agentops", "beat", "--schedule", str(self.home / "beat")])

    def spawn(self, argv: list[str], *, program: str = "celery", **env: str) -> Celeried:
        path = self.home / f"process-{len(self.workers)}.log"
        whole = {
            **self.databases.env(self.name, self.home),
            **QUICK,
            "REDIS_URL": self.redis.url if self.redis else "",
            "DJANGO_SETTINGS_MODULE": "tests.crash.settings",
            "AGENTOPS_PROCESS_NAME": "agentops-worker",
            **env,
        }
        pid = self.nursery.ask(program=program, argv=argv, env=whole, cwd=str(ROOT), log=str(path))
        self.workers.append(Celeried(self.nursery, pid, path))
        return self.workers[-1]

    def reaches(self, run: AgentRun, *statuses: RunStatus, within_s: float = 20) -> AgentRun:
        """The run, once it has one of the statuses."""

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


def events(run: AgentRun) -> list[Event]:
    return list(log.events_of(run.pk))


def check(run: AgentRun) -> None:
    """What holds for every run at every time: a log without a gap, and a conversation that providers take."""
    run.refresh_from_db()
    lines = events(run)
    assert [event.seq for event in lines] == list(range(1, len(lines) + 1))
    messages = list(AgentRunMessage.objects.filter(run=run).order_by("position"))
    assert [message.position for message in messages] == list(range(1, len(messages) + 1))
    active = [message for message in messages if message.rolled_back_at is None]
    asked = [
        part["tool_call_id"]
        for message in active
        for part in message.content["parts"]
        if part["part_kind"] == "tool-call"
    ]
    answered = [
        part["tool_call_id"]
        for message in active
        for part in message.content["parts"]
        if part["part_kind"] == "tool-return"
    ]
    assert Counter(answered) <= Counter(asked)
    assert len(set(answered)) == len(answered), "a call was answered twice"
    if run.state.terminal:
        assert Counter(asked) == Counter(answered), "a call has no answer"
        calls = AgentRunToolCall.objects.filter(run=run)
        assert {call.status for call in calls} <= set(RESOLVED)
        assert_turns_closed(lines)
    assert invariants.check(run.pk) == []
    # The sweep, which ends waits, holds no lease.
    epochs = [event.epoch for event in lines if event.source == "worker" and event.epoch is not None]
    assert epochs == sorted(epochs), "an event of an earlier epoch came after one of a later"


def assert_turns_closed(lines: Sequence[Event]) -> None:
    """Every start of a model turn has its end: committed, or abandoned."""
    started = sum(event.type == "llm.turn.start" for event in lines)
    ended = sum(event.type in ("llm.turn.end", "llm.turn.abandoned") for event in lines)
    assert started == ended, [event.type for event in lines if event.type.startswith("llm.turn")]


def transcript(run: AgentRun) -> dict[str, Any]:
    """All that a run came to but its ids and times: equal for a run that crashed and one that did not."""
    run.refresh_from_db()
    messages = AgentRunMessage.objects.filter(run=run).order_by("position")
    calls = AgentRunToolCall.objects.filter(run=run).order_by("step_number", "id")
    return {
        "messages": [(m.position, m.role, m.step_number, plain(m.content)) for m in messages],
        "calls": [(c.step_number, c.call_id, c.tool_name, c.input, c.status) for c in calls],
        "checkpoints": [(c.step_number, c.last_message_position) for c in run.checkpoints.order_by("step_number")],
        "run": (run.status, run.step_count, run.result),
        # Of answers: what a crash made the run ask twice is counted too, and differs.
        "usage": list(
            run.turn_usages.filter(outcome="answered")
            .order_by("step_number")
            .values_list("step_number", "input_tokens", "output_tokens")
        ),
    }


def plain(value: Any) -> Any:
    """A message's content without what differs from run to run."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items() if name not in ("timestamp", "id", "run_id")}
    return [plain(each) for each in value] if isinstance(value, list) else value
