"""Steps of remote runs: processor time of the site, compared with our own worker (G6) and with peers.

A step is a model call and a tool call, as in `steps`; a plain step is a call of `run.step`. As many runs as in
`concurrent` execute at the same time: in one process of `agentops.durable`, in one worker, and in one process of a
peer. Their rounds take turns.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from bench import payload, peers
from bench.concurrent import ROUND_S, RUNS, Rounds
from bench.growth_meters import ProcessorClock
from bench.processes import Program, free_port, running, site
from bench.remote_program import OBEDIENT, PLAIN, TURNS
from bench.report import Row, heading, mid, note, show
from bench.workers import READY_S, wait_until, working
from bench.workspace import Options, Workspace, redis_url, vacuum

GOAL = 1.5
#: Requests of the measured process have no limit, as in other benchmarks.
NO_LIMIT = {"AGENTOPS_RATE_INGEST": "1000000000"}


@dataclass
class RemoteRounds:
    """The rounds of runs of one agent that a process elsewhere executes."""

    site: Program
    program: Program
    clock: ProcessorClock
    agent: str
    steps: int
    site_ms: list[float] = field(default_factory=list)
    program_ms: list[float] = field(default_factory=list)
    database_ms: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def turn(self) -> None:
        before = self._spent_s()
        self.seconds.append(_drive_all(self.agent, self.steps))
        spent = [(after - was) / (RUNS * self.steps) * 1000 for after, was in zip(self._spent_s(), before, strict=True)]
        for values, value in zip((self.site_ms, self.program_ms, self.database_ms), spent, strict=True):
            values.append(value)

    def forget(self) -> None:
        """Forget the rounds so far, which included one-time work of the processes."""
        for values in (self.site_ms, self.program_ms, self.database_ms, self.seconds):
            values.clear()

    def _spent_s(self) -> tuple[float, float, float]:
        return self.site.cpu_s(), self.program.cpu_s(), self.clock.spent_s()


def run(workspace: Workspace, options: Options) -> None:
    length, rounds = max(options.steps // 10, 5), 2 if options.quick else 4
    heading(f"remote: {RUNS} runs of {length} steps at once, ~1 KB text, one tool call and ~1 KB result per step")
    turns = payload.steps(length)
    payload.write_fixture(workspace.fixtures(), "concurrent", turns)
    clock = ProcessorClock(workspace, [])
    with working(workspace, 1, slots=RUNS) as workers, serving(workspace, turns) as (served, program):
        own = Rounds(workers, length)
        remote, plain = (RemoteRounds(served, program, clock, agent, length) for agent in (TURNS, PLAIN))
        for each in (own, remote, plain):
            each.turn()
            each.forget()
        vacuum(workspace)
        own_database_ms = _rounds(own, (remote, plain), clock, rounds)
        _show(own, own_database_ms, remote, plain)
        for peer in peers.RUNNING if options.with_peers else ():
            _compare(workspace, remote, peer, turns, rounds)


def _rounds(own: Rounds, remote: Sequence[RemoteRounds], clock: ProcessorClock, rounds: int) -> list[float]:
    """Execute rounds in turns, and return the processor time of PostgreSQL for a step of our own worker."""
    database_ms = []
    for _ in range(rounds):
        before = clock.spent_s()
        own.turn()
        database_ms.append((clock.spent_s() - before) / (RUNS * own.steps) * 1000)
        for each in remote:
            each.turn()
    return database_ms


def _show(own: Rounds, own_database_ms: list[float], remote: RemoteRounds, plain: RemoteRounds) -> None:
    worker, database = mid(own.cpu_ms), mid(own_database_ms)
    for what, rounds in (("step", remote), ("plain step", plain)):
        web = mid(rounds.site_ms)
        figures = (f"{web:.2f} ms", f"a worker's step: {worker:.2f} ms")
        show(Row(f"web process per remote {what}", *figures, web / worker, at_most=GOAL))
        both = web + mid(rounds.database_ms)
        figures = (f"{both:.2f} ms", f"a worker's step: {worker + database:.2f} ms")
        show(Row("the same with PostgreSQL", *figures, both / (worker + database)))
        note(f"{RUNS * rounds.steps / mid(rounds.seconds):,.0f} steps/s; the program: {mid(rounds.program_ms):.2f} ms")
    note(f"our own worker: {own.rate:,.0f} steps/s")


def _compare(
    workspace: Workspace, remote: RemoteRounds, peer: peers.Peer, turns: Sequence[payload.PayloadStep], rounds: int
) -> None:
    what, steps = "web process and program per step", RUNS * len(turns)
    vacuum(workspace)
    remote.forget()
    theirs = []
    try:
        with peer.started(workspace, turns, window=steps, runs=RUNS) as maker:
            maker.steps(steps)
            for _ in range(rounds):
                remote.turn()
                before = maker.cpu_s()
                maker.steps(steps)
                theirs.append((maker.cpu_s() - before) / steps * 1000)
            title = maker.title
    except peers.PeerUnusable as error:
        show(Row(what, "-", f"{peer.title}: {error}"))
        return
    own_ms = mid(remote.site_ms) + mid(remote.program_ms)
    show(Row(what, f"{own_ms:.2f} ms", f"{title}: {mid(theirs):.2f} ms", own_ms / mid(theirs)))


@contextmanager
def serving(workspace: Workspace, turns: Sequence[payload.PayloadStep]) -> Iterator[tuple[Program, Program]]:
    """Start a site, and a program with the durable functions."""
    from agentops.accounts.access import SYSTEM
    from agentops.accounts.keys import create_key
    from agentops.accounts.models import Project
    from runs.models import Agent

    project, _ = Project.objects.get_or_create(slug="bench", defaults={"name": "Bench"})
    key = create_key(project, name="work", scopes=["work"], actor=SYSTEM).plain
    path = workspace.folder / "remote.json"
    payload.write_plain(path, list(turns))
    port, log = free_port(), workspace.folder / "site.log"
    environment = os.environ | NO_LIMIT | {"REDIS_URL": redis_url()}
    with ExitStack() as stack:
        served = stack.enter_context(running(site(port), environment, log, port=port))
        command = [sys.executable, "-m", "bench.remote_program", str(path), str(RUNS)]
        variables = os.environ | {"AGENTOPS_URL": served.url, "AGENTOPS_API_KEY": key}
        program = stack.enter_context(running(command, variables, workspace.folder / "program.log"))
        agents = Agent.objects.filter(project=project, slug__in=(TURNS, PLAIN, OBEDIENT))
        wait_until(lambda: agents.count() == 3, READY_S, program)
        yield served, program


def _drive_all(agent: str, steps: int) -> float:
    """Queue the runs together, and return the seconds from the first claim to the last end."""
    from django.db import transaction
    from django.db.models import Max, Min

    from runs.lifecycle import creation
    from runs.models import Agent, AgentRun

    executor = Agent.objects.select_related("project").get(project__slug="bench", slug=agent)
    with transaction.atomic():
        ids = [creation.create(executor.project, executor, payload.PROMPT, by="bench").pk for _ in range(RUNS)]
    runs = AgentRun.objects.filter(pk__in=ids)
    wait_until(lambda: not runs.filter(completed_at=None).exclude(status="paused").exists(), ROUND_S)
    bad = [run for run in runs if run.status != "completed" or run.step_count != steps]
    if bad:
        raise RuntimeError(f"{len(bad)} runs have not completed: {bad[0].status} {bad[0].status_reason}")
    span = runs.aggregate(first=Min("started_at"), last=Max("completed_at"))
    return float((span["last"] - span["first"]).total_seconds())
