"""Many runs at once in one worker process (G2), compared with peers that run as many in one process; and in two
processes.

The runs of a round execute at the same time. Rounds of agentops and of a peer take turns. A round lasts from the claim
of the first run to the end of the last.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench import payload, peers
from bench.processes import Program, running
from bench.report import Row, heading, mid, note, rate, show
from bench.workspace import Workspace, redis_url, sending_to_redis, vacuum

RUNS = 32
PEER_GOAL = 4.0
CPU_GOAL_MS = 2.0
TWO_GOAL = 1.3
READY_S = 40
ROUND_S = 600
_LANGGRAPH, _DBOS = peers.LANGGRAPH, peers.DBOS
PEERS = (
    peers.Peer("langgraph (delta)", "langgraph", _LANGGRAPH.requirements, "langgraph_runs.py", ("delta",)),
    peers.Peer("dbos", "dbos", _DBOS.requirements, "dbos_runs.py"),
    peers.Peer("langgraph (list)", "langgraph", _LANGGRAPH.requirements, "langgraph_runs.py", ("list",)),
)


@dataclass
class Rounds:
    """The rounds of worker processes that share the runs."""

    programs: Sequence[Program]
    steps: int
    seconds: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    def turn(self) -> float:
        before = self._cpu_s()
        self.seconds.append(_all_driven(self.steps))
        self.cpu_ms.append((self._cpu_s() - before) / (RUNS * self.steps) * 1000)
        return self.seconds[-1]

    @property
    def rate(self) -> float:
        return RUNS * self.steps / mid(self.seconds)

    def _cpu_s(self) -> float:
        return sum(program.cpu_s() for program in self.programs)


def run(workspace: Workspace, *, steps: int, quick: bool, with_peers: bool) -> None:
    length, rounds = max(steps // 10, 5), 2 if quick else 4
    heading(f"concurrent: {RUNS} runs of {length} steps at once, ~1 KB text, one tool call and ~1 KB result per step")
    turns = payload.steps(length)
    payload.write_fixture(workspace.fixtures(), "concurrent", turns)
    with _workers(workspace, 1) as programs:
        one = Rounds(programs, length)
        one.turn()  # One-time work of the process.
        one = Rounds(programs, length)
        for peer in PEERS if with_peers else ():
            _against(workspace, one, peer, turns, rounds)
        while len(one.seconds) < rounds:
            one.turn()
    # The processes of a pair would disturb each other, so the two setups take turns as a whole.
    with _workers(workspace, 2) as programs:
        two = Rounds(programs, length)
        two.turn()
        two = Rounds(programs, length)
        for _ in range(rounds):
            two.turn()
    cpu = mid(one.cpu_ms)
    show(
        Row(
            "processor time of the worker per step",
            f"{cpu:.2f} ms",
            f"goal: {CPU_GOAL_MS:g} ms",
            cpu / CPU_GOAL_MS,
            at_most=1.0,
        )
    )
    figures = (rate(two.rate, "steps/s"), f"one process: {rate(one.rate, '/s')}")
    show(Row("two worker processes", *figures, two.rate / one.rate, at_least=TWO_GOAL))
    note(f"two processes: {mid(two.cpu_ms):.2f} ms of processor time per step")


def _against(
    workspace: Workspace, own: Rounds, peer: peers.Peer, turns: Sequence[payload.PayloadStep], rounds: int
) -> None:
    what = f"{RUNS} runs at once"
    vacuum(workspace)
    own_s, theirs = [], []
    try:
        with peer.started(workspace, turns, window=RUNS * len(turns), runs=RUNS) as maker:
            maker.steps(RUNS * len(turns))
            for _ in range(rounds):
                own_s.append(own.turn())
                theirs.append(maker.steps(RUNS * len(turns)))
            title = maker.title
    except peers.PeerUnusable as error:
        show(Row(what, "-", f"{peer.title}: {error}"))
        return
    steps = RUNS * len(turns)
    figures = (rate(steps / mid(own_s), "steps/s"), f"{title}: {rate(steps / mid(theirs), '/s')}")
    show(Row(what, *figures, mid(theirs) / mid(own_s), at_least=PEER_GOAL))


@contextmanager
def _workers(workspace: Workspace, count: int) -> Iterator[list[Program]]:
    """Start worker processes as in production. They share the slots."""
    command: list[str | Path] = [
        Path(sys.executable).with_name("agentops"),
        "worker",
        "--concurrency",
        str(RUNS // count),
        "--beat",
    ]
    with ExitStack() as stack, sending_to_redis():
        programs = []
        for number in range(count):
            alive = workspace.folder / f"alive-{count}-{number}"
            environment = os.environ | {
                "AGENTOPS_ALIVE_FILE": str(alive),
                "AGENTOPS_DB_POOL": str(RUNS + 8),
                "REDIS_URL": redis_url(),
            }
            log = workspace.folder / f"worker-{count}-{number}.log"
            programs.append(stack.enter_context(running(command, environment, log)))
            _wait_for(alive.exists, READY_S, programs[-1])
        yield programs


def _wait_for(is_done: Callable[[], bool], within_s: float, program: Program) -> None:
    until = time.monotonic() + within_s
    while not is_done():
        if time.monotonic() > until or not program.alive():
            raise RuntimeError(program.last_line())
        time.sleep(0.02)


def _all_driven(steps: int) -> float:
    """Queue the runs together, and return the seconds from the first claim to the last end."""
    from django.db import transaction
    from django.db.models import Max, Min

    from bench.driven import created
    from runs.models import AgentRun

    with transaction.atomic():
        ids = [created("concurrent", steps).pk for _ in range(RUNS)]
    runs = AgentRun.objects.filter(pk__in=ids)
    until = time.monotonic() + ROUND_S
    while runs.filter(completed_at=None).exists():
        if time.monotonic() > until:
            raise RuntimeError(f"not ended: {list(runs.values_list('status', 'step_count'))}")
        time.sleep(0.2)
    bad = [run for run in runs if run.status != "completed" or run.step_count != steps]
    if bad:
        raise RuntimeError(f"{len(bad)} runs are not as they should be: {bad[0].status} {bad[0].status_reason}")
    span = runs.aggregate(first=Min("started_at"), last=Max("completed_at"))
    return float((span["last"] - span["first"]).total_seconds())
