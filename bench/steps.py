"""Durable steps of one worker (G1), and whether their duration is constant over the length of a run (G3).

agentops and the peers take turns of WINDOW steps within one run, so that the load of the machine affects all equally.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench import payload, peers
from bench.report import Row, heading, mid, note, rate, show
from bench.workspace import Options, Workspace, vacuum

if TYPE_CHECKING:
    from bench.driven import Driven
    from bench.same_rows import SameRows
    from runs.worker.worker import Worker

WINDOW = 25
LIMIT_GOAL = 0.75
#: Minimum speed relative to each peer: in long runs, and in short ones.
PEER_GOAL = 1.4
SHORT_GOALS = {"langgraph (delta)": 1.1, "dbos": 1.3, "langgraph (list)": 1.1}
FLAT_GOAL = 1.25
ENDS = 200
SHORT = 20
SHORT_RUNS = 12


@dataclass
class StepTurns:
    """A program that executes the same steps, one window at a time."""

    name: str
    maker: peers.Maker
    size: int
    seconds: list[float] = field(default_factory=list)

    def turn(self) -> None:
        self.seconds.append(self.maker.steps(self.size))


def run(workspace: Workspace, options: Options) -> None:
    from bench import driven
    from bench.same_rows import SameRows

    steps = options.steps
    heading(f"steps: one worker, runs of {steps:,} steps, ~1 KB text, one tool call and ~1 KB result per step")
    turns = payload.steps(steps)
    payload.write_fixture(workspace.fixtures(), "steps", turns)
    with driven.working() as worker:
        # The first run includes one-time work of the process.
        same = SameRows(workspace, driven.drive(worker, "steps", steps=steps).run_id)
        runs, limits = against_limit(workspace, worker, same, steps=steps, rounds=1 if options.quick else 3)
        flatness(f"last {ENDS} steps / first {ENDS}, run of {steps:,}", runs, limits)
        if options.with_peers:
            for peer in peers.STEPPING:
                against_peer(workspace, worker, peer, turns)
            short_runs(workspace, worker, turns[:SHORT])
        if not options.quick:
            long_run(workspace, worker, steps=5 * steps)


def against_limit(
    workspace: Workspace, worker: Worker, same: SameRows, *, steps: int, rounds: int
) -> tuple[list[Driven], list[list[float]]]:
    own_s: list[float] = []
    runs: list[Driven] = []
    limits: list[list[float]] = []
    for _ in range(rounds):
        vacuum(workspace)
        with same.writer() as writer:
            other = StepTurns("limit", writer, WINDOW)
            runs.append(side_by_side(worker, "steps", steps, other))
            own_s += runs[-1].windows(WINDOW)
            limits.append(other.seconds)
    limit = [seconds for one in limits for seconds in one]
    ratio = mid([theirs / own for own, theirs in zip(own_s, limit, strict=True)])
    other_rate = f"psycopg, the same rows and commits: {rate(WINDOW / mid(limit), '/s')}"
    show(
        Row("durable step, median window", rate(WINDOW / mid(own_s), "steps/s"), other_rate, ratio, at_least=LIMIT_GOAL)
    )
    total = sum(limit) / sum(own_s)
    note(f"ratio by total time instead of the median window: {total:.2f}; windows of {WINDOW} steps, {rounds} runs")
    return runs, limits


def against_peer(workspace: Workspace, worker: Worker, peer: peers.Peer, turns: Sequence[payload.PayloadStep]) -> None:
    what = f"durable step, run of {len(turns):,}"
    vacuum(workspace)
    try:
        with peer.started(workspace, turns, window=WINDOW) as maker:
            other = StepTurns(peer.title, maker, WINDOW)
            measured = side_by_side(worker, "steps", len(turns), other)
            title = maker.title
    except peers.PeerUnusable as error:
        show(Row(what, "-", f"{peer.title}: {error}"))
        return
    own, theirs = sum(measured.windows(WINDOW)), sum(other.seconds)
    steps = len(turns)
    show(
        Row(
            what,
            rate(steps / own, "steps/s"),
            f"{title}: {rate(steps / theirs, '/s')}",
            theirs / own,
            at_least=PEER_GOAL,
        )
    )


def short_runs(workspace: Workspace, worker: Worker, turns: Sequence[payload.PayloadStep]) -> None:
    """Measure short runs from their creation to their end, where the fixed cost of a run dominates."""
    from bench import driven

    steps, what = len(turns), f"durable step, run of {len(turns)}"
    payload.write_fixture(workspace.fixtures(), "short", list(turns))
    driven.drive(worker, "short", steps=steps)  # One-time work of the process.
    for peer in peers.STEPPING:
        own_s, theirs = [], []
        try:
            with peer.started(workspace, turns, window=steps, runs=SHORT_RUNS) as maker:
                for _ in range(SHORT_RUNS):
                    own_s.append(driven.drive(worker, "short", steps=steps).seconds)
                    theirs.append(maker.steps(steps))
                title = maker.title
        except peers.PeerUnusable as error:
            show(Row(what, "-", f"{peer.title}: {error}"))
            continue
        other = f"{title}: {rate(steps / mid(theirs), '/s')}"
        ratio = mid(theirs) / mid(own_s)
        show(Row(what, rate(steps / mid(own_s), "steps/s"), other, ratio, at_least=SHORT_GOALS[peer.title]))


def long_run(workspace: Workspace, worker: Worker, *, steps: int) -> None:
    from bench import driven
    from bench.same_rows import SameRows

    payload.write_fixture(workspace.fixtures(), "long", payload.steps(steps))
    same = SameRows(workspace, driven.drive(worker, "long", steps=steps).run_id)
    vacuum(workspace)
    with same.writer() as writer:
        limit = StepTurns("limit", writer, WINDOW)
        measured = side_by_side(worker, "long", steps, limit)
    flatness(f"last {ENDS} steps / first {ENDS}, run of {steps:,}", [measured], [limit.seconds])


def flatness(what: str, runs: Sequence[Driven], limits: Sequence[Sequence[float]]) -> None:
    """Print the mean duration of the last steps divided by the mean of the first steps in the same run.

    The goal is relative to the same ratio of the limit, whose cost cannot grow. This cancels out the load of the
    machine.
    """
    growths, plain = [], []
    for run, limit in zip(runs, limits, strict=True):
        windows = run.windows(WINDOW)
        count = max(min(ENDS, run.steps // 2) // WINDOW, 1)
        own_growth, theirs = (sum(some[-count:]) / sum(some[:count]) for some in (windows, limit))
        plain.append(own_growth)
        growths.append(own_growth / theirs)
    figures = (f"{mid(plain):.2f} times as slow", f"the limit meanwhile: {mid(plain) / mid(growths):.2f}")
    show(Row(what, *figures, mid(growths), at_most=FLAT_GOAL))


def side_by_side(worker: Worker, fixture: str, steps: int, other: StepTurns) -> Driven:
    from bench import driven

    return driven.drive(worker, fixture, steps=steps, window=WINDOW, others=other.turn)
