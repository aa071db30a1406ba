"""Many runs at once in one worker process (G2), compared with peers that run as many in one process; and in two
processes.

The runs of a round execute at the same time. Rounds of agentops and of a peer take turns. A round lasts from the
creation of the first run to the end of the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench import payload, peers
from bench.processes import Program
from bench.report import Row, heading, mid, note, rate, show
from bench.workers import wait_until, working
from bench.workspace import Options, Workspace, vacuum

RUNS = 32
PEER_GOAL = 2.0
CPU_GOAL_MS = 2.0
TWO_GOAL = 1.5
ROUND_S = 600


@dataclass
class Rounds:
    """The rounds of worker processes that share the runs."""

    programs: Sequence[Program]
    steps: int
    seconds: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    def turn(self) -> float:
        before = self._cpu_s()
        self.seconds.append(_drive_all(self.steps))
        self.cpu_ms.append((self._cpu_s() - before) / (RUNS * self.steps) * 1000)
        return self.seconds[-1]

    def forget(self) -> None:
        """Forget the rounds so far, which included one-time work of the processes."""
        self.seconds.clear()
        self.cpu_ms.clear()

    @property
    def rate(self) -> float:
        return RUNS * self.steps / mid(self.seconds)

    def _cpu_s(self) -> float:
        return sum(program.cpu_s() for program in self.programs)


def run(workspace: Workspace, options: Options) -> None:
    length, rounds = max(options.steps // 10, 5), 2 if options.quick else 4
    heading(f"concurrent: {RUNS} runs of {length} steps at once, ~1 KB text, one tool call and ~1 KB result per step")
    turns = payload.steps(length)
    payload.write_fixture(workspace.fixtures(), "concurrent", turns)
    with working(workspace, 1, slots=RUNS) as programs:
        one = Rounds(programs, length)
        one.turn()
        one.forget()
        for peer in peers.RUNNING if options.with_peers else ():
            _compare(workspace, one, peer, turns, rounds)
        while len(one.seconds) < rounds:
            one.turn()
    # The processes of a pair would disturb each other, so the two setups take turns as a whole.
    with working(workspace, 2, slots=RUNS // 2) as programs:
        two = Rounds(programs, length)
        two.turn()
        two.forget()
        for _ in range(rounds):
            two.turn()
    cpu = mid(one.cpu_ms)
    figures = (f"{cpu:.2f} ms", f"goal: {CPU_GOAL_MS:g} ms")
    show(Row("processor time of the worker per step", *figures, cpu / CPU_GOAL_MS, at_most=1.0))
    figures = (rate(two.rate, "steps/s"), f"one process: {rate(one.rate, '/s')}")
    show(Row("two worker processes", *figures, two.rate / one.rate, at_least=TWO_GOAL))
    note(f"two processes: {mid(two.cpu_ms):.2f} ms of processor time per step")


def _compare(
    workspace: Workspace, own: Rounds, peer: peers.Peer, turns: Sequence[payload.PayloadStep], rounds: int
) -> None:
    what, steps = f"{RUNS} runs at once", RUNS * len(turns)
    vacuum(workspace)
    own_s, theirs = [], []
    try:
        with peer.started(workspace, turns, window=steps, runs=RUNS) as maker:
            maker.steps(steps)
            for _ in range(rounds):
                own_s.append(own.turn())
                theirs.append(maker.steps(steps))
            title = maker.title
    except peers.PeerUnusable as error:
        show(Row(what, "-", f"{peer.title}: {error}"))
        return
    figures = (rate(steps / mid(own_s), "steps/s"), f"{title}: {rate(steps / mid(theirs), '/s')}")
    show(Row(what, *figures, mid(theirs) / mid(own_s), at_least=PEER_GOAL))


def _drive_all(steps: int) -> float:
    """Create the runs together, and return the seconds until the last end."""
    from django.db import transaction
    from django.db.models import Max
    from django.utils import timezone

    from bench.driven import created
    from runs.models import AgentRun

    began = timezone.now()
    with transaction.atomic():
        ids = [created("concurrent", steps).pk for _ in range(RUNS)]
    runs = AgentRun.objects.filter(pk__in=ids)
    wait_until(lambda: not runs.filter(completed_at=None).exists(), ROUND_S)
    bad = [run for run in runs if run.status != "completed" or run.step_count != steps]
    if bad:
        raise RuntimeError(f"{len(bad)} runs have not completed: {bad[0].status} {bad[0].status_reason}")
    # PostgreSQL uses the clock of this machine.
    ended = runs.aggregate(last=Max("completed_at"))["last"]
    return float((ended - began).total_seconds())
