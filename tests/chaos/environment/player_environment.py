"""The environment of one player: processes, databases, broker and server, and the results of undisturbed runs.

A player runs one schedule at a time, because this process connects to that schedule's database.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connections

from agentops.accounts.models import Project
from runs.lifecycle import creation
from runs.models import Agent, AgentRun
from runs.worker.in_process import advance_ready
from runs.worker.worker import Worker
from tests.chaos.environment.deterministic_model import EXPLODE, NAMES, SPAWN
from tests.chaos.environment.ledger_client import LedgerProcess
from tests.chaos.verdict import lineage_summary
from tests.chaos.verdict.lineage_summary import LineageSummary
from tests.support.child_processes import ForkServer
from tests.support.databases import Databases, OwnPostgres, OwnRedis, looking_at, reconnect
from tests.support.stage import Stage

#: Delays in seconds per piece of an answer and per tool, long enough for a fault to hit a run at work.
PIECE_S, BUSY_S = 0.04, 0.02
#: Time after which an approval without a decision expires.
EXPIRES = "1s"
TWINS_S = 120


@dataclass(frozen=True)
class Program:
    """The behavior of a run. Its twin is an undisturbed run of the same program."""

    seed: int
    #: Steps with tools; 0: chosen by the seed.
    length: int = 0
    max_steps: int = 50
    roll_back: bool = False
    talkative: bool = False
    faults: bool = False
    slow: float = 1.0
    #: Token budget of each run of the lineage; 0: none.
    budget: int = 0
    #: The step whose tool kills its process; 0: none. Such a run has no twin.
    explodes_at: int = 0
    #: Number of child runs that the second step opens.
    helpers: int = 0
    #: Whether payments and child runs need an approval. It is always granted, so the twin does not ask.
    asks: bool = False
    #: Whether payments need an approval that is never decided. Each expires, and the call is denied.
    expires: bool = False

    @property
    def twin(self) -> Program:
        return Program(
            self.seed, self.length, talkative=self.talkative, slow=0.0, helpers=self.helpers, expires=self.expires
        )

    @property
    def children(self) -> dict[str, Program]:
        """Return the programs of the child runs by the slugs of their agents."""
        return {
            f"helper-{self.seed}-{number}": Program(self.seed * 10 + number, 1 + number % 2, slow=self.slow)
            for number in range(self.helpers)
        }

    def agent(self, project: Project, slug: str, ledger: str) -> Agent:
        """Create the program's agent, and the agents of its child runs."""
        for name, child in self.children.items():
            child.agent(project, name, ledger)
        wishes: dict[str, Any] = {
            "parallel_tools": 1,
            "seed": self.seed,
            "length": self.length,
            "faults": self.faults,
            "ledger": ledger,
            "pause_s": PIECE_S * self.slow,
            "busy_s": BUSY_S * self.slow,
            "explodes_at": self.explodes_at,
            # Otherwise the model would hear of a child's pause, which does not happen to the twin.
            "helpers": list(self.children),
            "on_child_pause": "wait",
        }
        if self.budget:
            wishes["budgets"] = {"tokens": self.budget}
        return Agent.objects.create(
            project=project,
            slug=slug,
            provider="chaos",
            instructions="Do what the dice say.",
            tools=[*NAMES, EXPLODE, *[SPAWN] * bool(self.helpers)],
            model=f"{'talkative' if self.talkative else 'quiet'}-{self.seed}",
            settings=wishes,
            policies=self._policies(),
            max_steps=self.max_steps,
        )

    def _policies(self) -> dict[str, Any]:
        policies: dict[str, Any] = {"on_crash": "roll_back"} if self.roll_back else {}
        if self.asks:
            policies["approvals"] = [{"tools": f"pay|{SPAWN}", "action": "ask"}]
        if self.expires:
            policies["approvals"] = [{"tools": "pay", "action": "ask", "expires": EXPIRES}]
        return policies


PROMPT = "Go."


@dataclass
class PlayerEnvironment:
    engine: str
    directory: Path
    fork_server: ForkServer
    databases: Databases
    redis: OwnRedis
    #: None if the server is external and must not be restarted.
    cluster: OwnPostgres | None = None
    #: Points that an undisturbed run of twelve steps passes; see at_steps.py.
    route: list[str] = field(default_factory=list)
    #: How often each route passes each point; see at_crash_points.py.
    passes: dict[str, dict[str, int]] = field(default_factory=dict)
    #: The transcript of an undisturbed trip of each program, by agent; see killed_programs.py.
    trips: dict[str, Any] = field(default_factory=dict)
    _twins: dict[Program, LineageSummary] = field(default_factory=dict)
    _count: int = 0

    @contextmanager
    def stage(self, *, redis: bool) -> Iterator[tuple[Stage, LedgerProcess]]:
        """Set up a fresh database that this process connects to, an empty broker and an empty ledger."""
        self._count += 1
        home = self.directory / f"schedule-{self._count}"
        home.mkdir()
        with ExitStack() as stack:
            name = stack.enter_context(self.databases.fresh())
            stack.enter_context(looking_at(name))
            stack.callback(connections.close_all)
            ledger = LedgerProcess(home)
            stack.callback(ledger.close)
            stage = Stage(self.fork_server, self.databases, name, home)
            stack.callback(stage.close)
            if redis:
                self.redis.start()
                stack.callback(self.redis.kill)
                stage.redis = self.redis
            settings.REDIS_URL = self.redis.url if redis else ""
            yield stage, ledger
        shutil.rmtree(home, ignore_errors=True)

    def twins(self, programs: list[Program]) -> dict[Program, LineageSummary]:
        """Return the summary of each program's undisturbed run. Each is played once, in this process."""
        programs = [*programs, *(child for program in programs for child in program.children.values())]
        missing = sorted({p.twin for p in programs} - set(self._twins), key=str)
        if missing:
            with self.stage(redis=False) as (_, ledger):
                self._twins |= _undisturbed(missing, ledger.url)
        return {program: self._twins[program.twin] for program in programs}


def _undisturbed(programs: list[Program], ledger: str) -> dict[Program, LineageSummary]:
    reconnect()
    project = Project.objects.create(slug="twins", name="Twins")
    runs: dict[Program, AgentRun] = {}
    for number, program in enumerate(programs):
        agent = program.agent(project, f"run-{number}", ledger)
        runs[program] = creation.create(project, agent, PROMPT, by="chaos")
    worker = Worker()
    until = time.monotonic() + TWINS_S
    try:
        while AgentRun.objects.unended().exists():
            assert time.monotonic() < until, "the undisturbed do not come to an end"
            if not advance_ready(worker):
                time.sleep(0.05)
    finally:
        worker.close(10)
    told = {program: lineage_summary.tell([AgentRun.objects.get(pk=run.pk)]) for program, run in runs.items()}
    assert {each.status for each in told.values()} == {"completed"}, told
    return told
