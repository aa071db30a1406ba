"""One and two worker processes at the default settings: transactions, connections, and the time to continue after a
kill -9.

Runs are paced: a model call takes a second. If a killed worker was the only worker, it restarts at once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import datetime
from statistics import fmean
from uuid import UUID

from bench import payload
from bench.processes import Program
from bench.report import Row, heading, note, show
from bench.workers import wait_until, wait_until_claimed, working
from bench.workspace import Options, Workspace, truncate_tables

STEPS = 400
CONTINUED_S = 90
WINDOW_S, QUICK_WINDOW_S = 20.0, 3.0
#: Runs per worker while it is busy, and runs of the site when a worker is killed.
BUSY_RUNS, HELD_RUNS = 8, 3
ROUNDS = 4


@dataclass
class Figures:
    """The measurements with `workers` workers: lists of seconds, and rates per second."""

    workers: int
    idle_transactions: float = 0.0
    busy_transactions: float = 0.0
    busy_steps: float = 0.0
    idle_connections: float = 0.0
    busy_connections: float = 0.0
    #: From the kill to the first claim of a run, and to the next step of the first and the last run.
    taken_s: list[float] = field(default_factory=list)
    first_step_s: list[float] = field(default_factory=list)
    last_step_s: list[float] = field(default_factory=list)


def run(workspace: Workspace, options: Options) -> None:
    heading("takeover: worker processes at the default settings, runs with a model call of one second for each step")
    payload.write_fixture(workspace.fixtures(), "paced", payload.steps(STEPS))
    for count in (1,) if options.is_small else (1, 2):
        figures = Figures(count)
        _measure_load(workspace, figures, QUICK_WINDOW_S if options.quick else WINDOW_S)
        for _ in range(1 if options.quick else ROUNDS):
            _measure_kill(workspace, figures)
        _show(figures)
        note(json.dumps(asdict(figures)))


def _measure_load(workspace: Workspace, figures: Figures, window_s: float) -> None:
    """Measure the transactions and connections of idle workers, then of busy ones."""
    with working(workspace, figures.workers, slots=BUSY_RUNS) as programs:
        time.sleep(3)
        figures.idle_transactions = _transactions(workspace, window_s)
        figures.idle_connections = _connections(workspace, programs)
        ids = [_queue() for _ in range(BUSY_RUNS * figures.workers)]
        wait_until_claimed(ids)
        time.sleep(3)
        before = sum(_step_counts(ids).values())
        figures.busy_transactions = _transactions(workspace, window_s)
        figures.busy_steps = (sum(_step_counts(ids).values()) - before) / window_s
        figures.busy_connections = _connections(workspace, programs)
    truncate_tables(workspace)


def _measure_kill(workspace: Workspace, figures: Figures) -> None:
    """Kill the worker that holds the runs, and measure how long each run waits."""
    from django.utils import timezone

    with ExitStack() as stack:
        [victim] = stack.enter_context(working(workspace, 1, slots=BUSY_RUNS))
        ids = [_queue() for _ in range(HELD_RUNS)]
        wait_until_claimed(ids)
        if figures.workers == 2:
            stack.enter_context(working(workspace, 1, slots=BUSY_RUNS, name="other"))
        time.sleep(random.uniform(6, 11))
        before = _step_counts(ids)
        killed_at = timezone.now()
        for pid in reversed(victim.pids()):
            os.kill(pid, signal.SIGKILL)
        if figures.workers == 1:
            stack.enter_context(working(workspace, 1, slots=BUSY_RUNS, name="again"))
        _note_recovery(figures, ids, before, killed_at)
    truncate_tables(workspace)


def _note_recovery(figures: Figures, ids: list[UUID], before: dict[UUID, int], killed_at: datetime) -> None:
    from django.utils import timezone

    from runs.models import Attempt

    continued: dict[UUID, float] = {}

    def have_all_continued() -> bool:
        for run_id, count in _step_counts(ids).items():
            if count > before[run_id] and run_id not in continued:
                continued[run_id] = (timezone.now() - killed_at).total_seconds()
        return len(continued) == len(ids)

    # A step committed just before the kill does not count as recovery.
    time.sleep(1)
    before.update(_step_counts(ids))
    wait_until(have_all_continued, CONTINUED_S)
    claims = Attempt.objects.filter(run__in=ids, claimed_at__gt=killed_at).values_list("claimed_at", flat=True)
    figures.taken_s.append((min(claims) - killed_at).total_seconds())
    figures.first_step_s.append(min(continued.values()))
    figures.last_step_s.append(max(continued.values()))


def _queue() -> UUID:
    from bench.driven import created

    return created("paced", STEPS, pace_s=1).pk


def _step_counts(ids: list[UUID]) -> dict[UUID, int]:
    from runs.models import AgentRun

    return dict(AgentRun.objects.filter(pk__in=ids).values_list("pk", "step_count"))


def _transactions(workspace: Workspace, seconds: float) -> float:
    """Return the committed transactions per second in the database, except those from this process."""
    statement = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
    with workspace.connect() as connection:

        def count() -> int:
            connection.execute("SELECT pg_stat_clear_snapshot()")
            row = connection.execute(statement).fetchone()
            assert row is not None
            return int(row[0])

        # Statistics of other connections arrive up to a second late.
        first, began = count(), time.monotonic()
        time.sleep(seconds)
        return (count() - first) / (time.monotonic() - began)


def _connections(workspace: Workspace, programs: list[Program]) -> float:
    """Return the mean number of a worker process's open connections to PostgreSQL."""
    return fmean(program.connections(workspace.port()) for program in programs)


def _show(figures: Figures) -> None:
    what = f"{figures.workers} worker{'s' if figures.workers > 1 else ''}"
    busy = (f"{figures.busy_transactions:.1f} transactions/s", f"{figures.busy_steps:.1f} steps/s")
    connections = f"{figures.idle_connections:.0f} idle, {figures.busy_connections:.0f} busy"
    show(Row(f"{what}, idle", f"{figures.idle_transactions:.1f} transactions/s"))
    show(Row(f"{what}, {BUSY_RUNS} runs each", *busy))
    show(Row(f"{what}, connections of one", connections))
    for name in ("taken_s", "first_step_s", "last_step_s"):
        values = getattr(figures, name)
        show(Row(f"{what}, {name}", f"{fmean(values):.2f} s", f"{min(values):.2f} to {max(values):.2f} s"))
