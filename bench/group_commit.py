"""32 runs at once in one process, with commits in groups or alone (G2).

Rounds of both modes take turns. The processor time includes this process and PostgreSQL, which share the machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import payload
from bench.concurrent import RUNS
from bench.report import Row, heading, mid, note, rate, show
from bench.workspace import Workspace, vacuum

GOAL = 1.2
TICKS_S = os.sysconf("SC_CLK_TCK")


@dataclass
class Way:
    """The rounds of one commit mode."""

    steps_s: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)


def run(workspace: Workspace, *, steps: int, quick: bool, with_peers: bool) -> None:
    from runs.conversation import group_commit
    from runs.worker.worker import Worker

    length, rounds = max(steps // 10, 5), 2 if quick else 6
    heading(f"group_commit: {RUNS} runs of {length} steps at once, in one process")
    payload.write_fixture(workspace.fixtures(), "together", payload.steps(length))
    ways = {"together": Way(), "alone": Way()}
    worker = Worker()
    try:
        _round(worker, length)  # One-time work of the process.
        for _ in range(rounds):
            for name, way in ways.items():
                vacuum(workspace)
                with _committing(group_commit.GROUP, None if name == "together" else group_commit.commit_alone):
                    before = time.process_time() + _postgres_s()
                    seconds = _round(worker, length)
                    spent = time.process_time() + _postgres_s() - before
                way.steps_s.append(RUNS * length / seconds)
                way.cpu_ms.append(spent / (RUNS * length) * 1000)
    finally:
        worker.close(5)
    own, alone = ways["together"], ways["alone"]
    figures = (rate(mid(own.steps_s), "steps/s"), f"each commit by itself: {rate(mid(alone.steps_s), '/s')}")
    show(Row("commits of several runs together", *figures, mid(own.steps_s) / mid(alone.steps_s), at_least=GOAL))
    cpu = mid(own.cpu_ms), mid(alone.cpu_ms)
    note(f"processor time of a step, with PostgreSQL: {cpu[0]:.2f} ms together, {cpu[1]:.2f} ms alone")


@contextmanager
def _committing(group: Any, how: Callable[[Any], Any] | None) -> Iterator[None]:
    """Make each commit with `how`, without a group."""
    if how is not None:
        group.commit = how
    try:
        yield
    finally:
        if how is not None:
            del group.commit


def _round(worker: Any, length: int) -> float:
    """Execute as many runs as a worker has slots at the same time, and return the seconds."""
    from bench.driven import created
    from runs.models import AgentRun

    ids = [created("together", length).pk for _ in range(RUNS)]
    with ThreadPoolExecutor(RUNS) as pool:
        began = time.perf_counter()
        taken = list(pool.map(_driving(worker), ids))
        seconds = time.perf_counter() - began
    done = AgentRun.objects.filter(pk__in=ids, status="completed", step_count=length).count()
    if not all(taken) or done != RUNS:
        raise RuntimeError(f"{done} of {RUNS} runs were completed")
    return seconds


def _driving(worker: Any) -> Callable[[Any], bool]:
    from django.db import connection

    def drive(run_id: Any) -> bool:
        try:
            return bool(worker.drive(run_id))
        finally:
            connection.close()

    return drive


def _postgres_s() -> float:
    """Return the processor time of all running PostgreSQL processes on this machine, in seconds."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, fields = stat.read_text().partition(" (")[2].rpartition(") ")
            if name == "postgres":
                user, system = fields.split()[11:13]
                ticks += int(user) + int(system)
    return ticks / TICKS_S
