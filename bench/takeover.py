"""One and two worker processes at the default settings: transactions, connections, time to a claim and after a kill -9.

Runs are paced: a model call takes a second. If a killed worker was the only worker, it restarts at once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import fmean
from uuid import UUID

from bench import payload
from bench.processes import Program, running
from bench.report import Row, heading, note, show
from bench.workspace import Workspace, redis_url, truncate_tables

STEPS = 400
READY_S, MOST_S = 60, 90
IDLE_S, BUSY_S = 20.0, 20.0
#: Runs per worker while it is busy, and runs of the site when a worker is killed.
BUSY_RUNS, HELD_RUNS = 8, 3
QUEUED, APART_S = 40, 0.51
ROUNDS = 4
#: For the wait for a slot: slots per worker, runs per slot, and seconds of a slice.
SLOTS, RUNS_PER_SLOT, SLICE_S = 2, 2, 6


@dataclass
class Figures:
    """The measurements with `workers` workers: lists of seconds, and rates per second."""

    workers: int
    idle_transactions: float = 0.0
    busy_transactions: float = 0.0
    busy_steps: float = 0.0
    idle_connections: float = 0.0
    busy_connections: float = 0.0
    claim_s: list[float] = field(default_factory=list)
    slot_s: list[float] = field(default_factory=list)
    #: From the kill to the first claim of a run, and to the next step of the first and the last run.
    taken_s: list[float] = field(default_factory=list)
    first_step_s: list[float] = field(default_factory=list)
    last_step_s: list[float] = field(default_factory=list)


def run(workspace: Workspace, *, steps: int, quick: bool, with_peers: bool) -> None:
    heading("takeover: worker processes at the default settings, runs with a model call of one second for each step")
    payload.write_fixture(workspace.fixtures(), "paced", payload.steps(STEPS))
    rounds = 1 if quick else ROUNDS
    for count in (1, 2):
        figures = Figures(count)
        for number in range(rounds):
            _measure_claims(workspace, figures, is_first=number == 0)
            _measure_kill(workspace, figures)
        _measure_slots(workspace, figures)
        _show(figures)
        note(json.dumps(asdict(figures)))


def _measure_claims(workspace: Workspace, figures: Figures, *, is_first: bool) -> None:
    with _workers(workspace, figures.workers, slots=QUEUED) as programs:
        if is_first:
            time.sleep(3)
            figures.idle_transactions = _transactions(workspace, IDLE_S)
            figures.idle_connections = _connections(workspace, programs)
        ids = []
        for _ in range(QUEUED):
            ids.append(_queue())
            time.sleep(APART_S)
        _wait_until(lambda: _first_claims(ids) is not None)
        figures.claim_s += _first_claims(ids) or []
    truncate_tables(workspace)
    if is_first:
        with _workers(workspace, figures.workers, slots=BUSY_RUNS) as programs:
            ids = [_queue() for _ in range(BUSY_RUNS * figures.workers)]
            _wait_until(lambda: _first_claims(ids) is not None)
            time.sleep(3)
            before = sum(_step_counts(ids).values())
            figures.busy_transactions = _transactions(workspace, BUSY_S)
            figures.busy_steps = (sum(_step_counts(ids).values()) - before) / BUSY_S
            figures.busy_connections = _connections(workspace, programs)
        truncate_tables(workspace)


def _measure_kill(workspace: Workspace, figures: Figures) -> None:
    """Kill the worker that holds the runs, and measure how long each run waits."""
    from django.utils import timezone

    with ExitStack() as stack:
        [victim] = stack.enter_context(_workers(workspace, 1, slots=BUSY_RUNS))
        ids = [_queue() for _ in range(HELD_RUNS)]
        _wait_until(lambda: _first_claims(ids) is not None)
        if figures.workers == 2:
            stack.enter_context(_workers(workspace, 1, slots=BUSY_RUNS, name="other"))
        time.sleep(random.uniform(6, 11))
        before = _step_counts(ids)
        killed_at = timezone.now()
        _kill(victim)
        if figures.workers == 1:
            stack.enter_context(_workers(workspace, 1, slots=BUSY_RUNS, name="again"))
        _note_recovery(figures, ids, before, killed_at)
    truncate_tables(workspace)


def _note_recovery(figures: Figures, ids: list[UUID], before: dict[UUID, int], killed_at: datetime) -> None:
    from django.utils import timezone

    continued: dict[UUID, float] = {}

    def look() -> bool:
        for run_id, count in _step_counts(ids).items():
            if count > before[run_id] and run_id not in continued:
                continued[run_id] = (timezone.now() - killed_at).total_seconds()
        return len(continued) == len(ids)

    # A step committed just before the kill does not count as recovery.
    time.sleep(1)
    before.update(_step_counts(ids))
    _wait_until(look)
    from runs.models import Attempt

    claims = Attempt.objects.filter(run__in=ids, claimed_at__gt=killed_at).values_list("claimed_at", flat=True)
    figures.taken_s.append((min(claims) - killed_at).total_seconds())
    figures.first_step_s.append(min(continued.values()))
    figures.last_step_s.append(max(continued.values()))


def _measure_slots(workspace: Workspace, figures: Figures) -> None:
    """Queue more runs than slots. Measure how long the other runs wait after the first have their slots."""
    from runs.models import AgentRun

    with _workers(workspace, figures.workers, slots=SLOTS, more={"AGENTOPS_SLICE_S": str(SLICE_S)}):
        slots = SLOTS * figures.workers
        ids = [_queue() for _ in range(slots * RUNS_PER_SLOT)]
        _wait_until(lambda: _first_claims(ids) is not None)
        claims = sorted(AgentRun.objects.filter(pk__in=ids).values_list("started_at", flat=True))
        figures.slot_s += [(claim - claims[slots - 1]).total_seconds() for claim in claims[slots:]]
    truncate_tables(workspace)


def _queue() -> UUID:
    from agentops.accounts.models import Project
    from runs.lifecycle import creation
    from runs.models import Agent

    project, _ = Project.objects.get_or_create(slug="bench", defaults={"name": "Bench"})
    values = {"provider": "fixture", "model": "paced", "tools": ["recorded"], "max_steps": STEPS + 1,
              "settings": {"pace": 1}}  # fmt: skip
    agent, _ = Agent.objects.get_or_create(project=project, slug="paced", defaults=values)
    return creation.create(project, agent, payload.PROMPT, by="bench").pk


def _first_claims(ids: list[UUID]) -> list[float] | None:
    """Return the seconds from queueing to the first claim of each run, or None while a run waits."""
    from runs.models import AgentRun

    rows = AgentRun.objects.filter(pk__in=ids).values_list("created_at", "started_at")
    if any(started is None for _, started in rows):
        return None
    return [(started - created).total_seconds() for created, started in rows]


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


def _kill(program: Program) -> None:
    for pid in reversed(program.pids()):
        os.kill(pid, signal.SIGKILL)


def _wait_until(is_done: Callable[[], bool]) -> None:
    until = time.monotonic() + MOST_S
    while not is_done():
        if time.monotonic() > until:
            raise RuntimeError("the runs did not get that far")
        time.sleep(0.1)


@contextmanager
def _workers(
    workspace: Workspace, count: int, *, slots: int, name: str = "worker", more: dict[str, str] | None = None
) -> Iterator[list[Program]]:
    """Start worker processes as in production, and wait until each is ready."""
    command: list[str | Path] = [
        Path(sys.executable).with_name("agentops"), "worker", "--concurrency", str(slots), "--beat",
    ]  # fmt: skip
    with ExitStack() as stack:
        programs = []
        for number in range(count):
            alive = workspace.folder / f"alive-{name}-{number}-{time.monotonic_ns()}"
            environment = os.environ | {
                "AGENTOPS_ALIVE_FILE": str(alive),
                "AGENTOPS_DB_POOL": str(max(slots + 8, 20)),
                "AGENTOPS_SLICE_S": "3600",
                "REDIS_URL": redis_url(),
                **(more or {}),
            }
            programs.append(
                stack.enter_context(running(command, environment, workspace.folder / f"{name}-{number}.log"))
            )
            until = time.monotonic() + READY_S
            while not alive.exists():
                if time.monotonic() > until or not programs[-1].alive():
                    raise RuntimeError(programs[-1].last_line())
                time.sleep(0.02)
        yield programs


def _show(figures: Figures) -> None:
    what = f"{figures.workers} worker{'s' if figures.workers > 1 else ''}"
    show(Row(f"{what}, idle", f"{figures.idle_transactions:.1f} transactions/s"))
    show(
        Row(
            f"{what}, {BUSY_RUNS} runs each",
            f"{figures.busy_transactions:.1f} transactions/s",
            f"{figures.busy_steps:.1f} steps/s",
        )
    )
    show(
        Row(f"{what}, connections of one", f"{figures.idle_connections:.0f} idle, {figures.busy_connections:.0f} busy")
    )
    for name in ("claim_s", "slot_s", "taken_s", "first_step_s", "last_step_s"):
        values = getattr(figures, name)
        show(Row(f"{what}, {name}", f"{fmean(values):.2f} s", f"{min(values):.2f} to {max(values):.2f} s"))
