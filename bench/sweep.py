"""The database load of one worker: statements of a sweep, renewals, a claim and a step, and the cost of sweeps and
renewals.

A sweep is measured with 0, 1,000 and 10,000 running runs. Django counts the statements, without BEGIN and COMMIT.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench import payload
from bench.processes import process_cpu_s
from bench.report import Row, heading, mid, note, show
from bench.workspace import Options, Workspace, truncate_tables, vacuum

RUNNING = (0, 1_000, 10_000)
SWEEPS, QUICK_SWEEPS = 40, 5
LEASES = (1, 10, 100)
RENEWALS, QUICK_RENEWALS = 500, 20
SHORT, LONG = 5, 25
#: Makes all runs running, with leases that end after the measurement.
_RUNNING = """
UPDATE agent_runs SET status = 'running', status_reason = '', completed_at = NULL, lease_owner = 'bench',
    lease_expires_at = now() + interval '1 hour'"""


class StatementCounter:
    """Counts the statements that Django sends in this thread."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, execute: Any, statement: str, params: Any, many: bool, context: Any) -> Any:
        self.count += 1
        return execute(statement, params, many, context)


@contextmanager
def counting() -> Iterator[StatementCounter]:
    from django.db import connection

    counter = StatementCounter()
    with connection.execute_wrapper(counter):
        yield counter


def run(workspace: Workspace, options: Options) -> None:
    quick = options.quick
    heading("sweep: statements that one worker sends, and the cost of its sweep")
    _count_acts(workspace)
    _measure_renewals(QUICK_RENEWALS if quick else RENEWALS)
    for running in RUNNING[:2] if quick else RUNNING:
        truncate_tables(workspace)
        _measure_sweeps(workspace, running, QUICK_SWEEPS if quick else SWEEPS)


def _count_acts(workspace: Workspace) -> None:
    from bench import driven
    from runs.lifecycle import transitions

    payload.write_fixture(workspace.fixtures(), "short", payload.steps(SHORT))
    payload.write_fixture(workspace.fixtures(), "long", payload.steps(LONG))
    counted = {}
    with driven.working() as worker:
        with counting() as sweep:
            _sweep()
        show(Row("idle sweep", f"{sweep.count} statements"))
        for name, length in (("short", SHORT), ("long", LONG)):
            driven.drive(worker, name, steps=length)  # One-time work of the process.
            with counting() as counter:
                driven.drive(worker, name, steps=length)
            counted[name] = counter.count
    show(Row("step", f"{(counted['long'] - counted['short']) / (LONG - SHORT):.1f} statements"))
    created = driven.created("short", SHORT)
    with counting() as claim:
        transitions.claim(created.pk, "bench")
    show(Row("claim", f"{claim.count} statements"))


def _measure_renewals(rounds: int) -> None:
    """Renew the leases of a worker repeatedly."""
    from bench import driven
    from runs.engine import leases
    from runs.lifecycle import transitions

    held = []
    while len(held) < max(LEASES):
        claimed = transitions.claim(driven.created("short", SHORT).pk, "bench")
        assert claimed is not None
        held.append((claimed.run.pk, claimed.epoch))
    for count in LEASES:
        chosen = held[:count]
        with counting() as counter:
            leases.renew_unlocked(chosen)
        before = _server_s()
        for _ in range(rounds):
            leases.renew_unlocked(chosen)
        cost = (_server_s() - before) / rounds * 1000
        show(Row(f"renewal of {count} leases", f"{counter.count} statements", f"CPU of PostgreSQL: {cost:.2f} ms"))


def _server_s() -> float:
    """Return the processor time of the server process of this thread's connection, in seconds."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        [server] = cursor.fetchone()
    return process_cpu_s(server)


def _sweep() -> None:
    from runs.worker import sweep

    sweep.sweep(now=True)


def _measure_sweeps(workspace: Workspace, running: int, sweeps: int) -> None:
    if running:
        from bench.list_rows import fill

        fill(workspace, running, event_count=10)
        with workspace.connect() as connection:
            connection.execute("SET session_replication_role = replica")
            connection.execute(_RUNNING)
        vacuum(workspace)
    _sweep()
    took, cpu, server_cpu = _sweep_ms(sweeps)
    figures = f"CPU: {cpu:.2f} ms, in PostgreSQL {server_cpu:.2f} ms"
    show(Row(f"sweep, {running:,} running runs", f"{mid(took):.2f} ms", figures))
    note(f"median of {sweeps} sweeps, processor time on average")


def _sweep_ms(sweeps: int) -> tuple[list[float], float, float]:
    """Return the milliseconds of each sweep, and a sweep's mean processor time in this thread and in PostgreSQL."""
    took, before, server_before = [], time.thread_time(), _server_s()
    for _ in range(sweeps):
        began = time.perf_counter()
        _sweep()
        took.append((time.perf_counter() - began) * 1000)
    spent, server_spent = time.thread_time() - before, _server_s() - server_before
    return took, spent / sweeps * 1000, server_spent / sweeps * 1000
