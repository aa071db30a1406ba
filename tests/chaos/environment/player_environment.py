"""Where schedules are played: the processes, databases, broker and server of one player, and the undisturbed twins.

One schedule at a time: this process looks at its database.
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
from tests.support.processes.child_processes import ForkServer
from tests.support.processes.databases import Databases, looking_at, reconnect
from tests.support.processes.postgres_server import OwnPostgres
from tests.support.processes.redis_server import OwnRedis
from tests.support.processes.stage import Stage

#: How much time things take for a run to be caught in the act.
PIECE_S, BUSY_S = 0.04, 0.02
#: How long an approval waits that nobody gives.
EXPIRES = "1s"
TWINS_S = 120


@dataclass(frozen=True)
class Program:
    """What a run does. Its twin is another run of the same that nobody disturbs."""

    seed: int
    #: Steps with tools; 0: by the seed.
    length: int = 0
    max_steps: int = 50
    roll_back: bool = False
    talkative: bool = False
    faults: bool = False
    slow: float = 1.0
    #: Of tokens, for each run of the lineage; 0: none.
    budget: int = 0
    #: The step whose tool ends its process; 0: none. Such a run has no twin.
    explodes_at: int = 0
    #: Child runs that its second step opens.
    helpers: int = 0
    #: Whether payments and child runs need an approval. They get it, so the twin does without.
    asks: bool = False
    #: Whether payments need an approval that nobody gives: each expires, and is denied.
    expires: bool = False

    @property
    def twin(self) -> Program:
        return Program(
            self.seed, self.length, talkative=self.talkative, slow=0.0, helpers=self.helpers, expires=self.expires
        )

    @property
    def children(self) -> dict[str, Program]:
        """The programs of its child runs, by the names of their agents."""
        return {
            f"helper-{self.seed}-{number}": Program(self.seed * 10 + number, 1 + number % 2, slow=self.slow)
            for number in range(self.helpers)
        }

    def agent(self, project: Project, slug: str, ledger: str) -> Agent:
        """The agent of the program; those of its child runs are made with it."""
        for name, child in self.children.items():
            child.agent(project, name, ledger)
        wishes: dict[str, Any] = {
            "parallel_tools": 1, "seed": self.seed, "length": self.length, "faults": self.faults, "ledger": ledger,
            "pause_s": PIECE_S * self.slow, "busy_s": BUSY_S * self.slow, "explodes_at": self.explodes_at,
            # A pause would be told to the program, and to that of its twin not.
            "helpers": list(self.children), "on_child_pause": "wait",
        }  # fmt: skip
        if self.budget:
            wishes["budgets"] = {"tokens": self.budget}
        return Agent.objects.create(
            project=project, slug=slug, provider="chaos", instructions="Do what the dice say.",
            tools=[*NAMES, EXPLODE, *[SPAWN] * bool(self.helpers)],
            model=f"{'talkative' if self.talkative else 'quiet'}-{self.seed}", settings=wishes,
            policies=self._policies(), max_steps=self.max_steps,
        )  # fmt: skip

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
    #: None where the server is somebody else's: it is not restarted then.
    cluster: OwnPostgres | None = None
    #: See steps.py.
    route: list[str] = field(default_factory=list)
    #: See points.py.
    passes: dict[str, dict[str, int]] = field(default_factory=dict)
    _twins: dict[Program, LineageSummary] = field(default_factory=dict)
    _count: int = 0

    @contextmanager
    def stage(self, *, redis: bool) -> Iterator[tuple[Stage, LedgerProcess]]:
        """A fresh database that this process looks at too, an empty broker, and an empty ledger."""
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
        """What each comes to when nothing happens: played here, once, by the product as it is."""
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
