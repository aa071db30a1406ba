"""Times with Redis as the broker: how long a free slot waits for the next run, and how long a new run waits for an idle
worker when another worker is busy.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from uuid import UUID

from bench import payload
from bench.processes import running
from bench.report import Row, heading, note, percentile, show
from bench.workspace import Workspace, redis_url, sending_to_redis, truncate_tables

#: The number of runs that wait for one slot, and of runs that arrive one by one at an idle worker.
WAITING, QUICK_WAITING = 100, 20
COMING, QUICK_COMING, APART_S = 40, 10, 0.3
#: The steps of a run that waits, and of a paced run that occupies a slot.
SHORT, LONG = 1, 400
#: Limits in milliseconds.
FREED_MS, IDLE_MS = 50, 200
MOST_S = 120


def run(workspace: Workspace, *, steps: int, quick: bool, with_peers: bool) -> None:
    heading("places: from a place that becomes free to the claim of the next run, and to an idle worker")
    payload.write_fixture(workspace.fixtures(), "short", payload.steps(SHORT))
    payload.write_fixture(workspace.fixtures(), "long", payload.steps(LONG))
    with sending_to_redis(), _worker(workspace, "one"):
        _show("a place that becomes free", _freed_ms(QUICK_WAITING if quick else WAITING), FREED_MS)
    truncate_tables(workspace)
    with sending_to_redis(), _worker(workspace, "busy"):
        busy = _queue("long", pace_s=1)
        _wait_until_claimed([busy])
        with _worker(workspace, "idle"):
            _show("an idle worker beside a busy one", _idle_ms(QUICK_COMING if quick else COMING), IDLE_MS)
    note("milliseconds by the database's clock; the limit is for the 95th percentile")


def _show(what: str, values: list[float], limit_ms: float) -> None:
    high = percentile(values, 95)
    own = f"p50 {percentile(values, 50):.0f}, p95 {high:.0f} ms"
    show(Row(what, own, f"{limit_ms:.0f} ms", high / limit_ms, at_most=1))


def _freed_ms(count: int) -> list[float]:
    """Return the milliseconds from the end of each run to the claim of the next. All runs wait for one slot."""
    from runs.models import Attempt

    ids = [_queue("short") for _ in range(count)]
    _wait_until_claimed(ids)
    rows = list(Attempt.objects.filter(run__in=ids).order_by("claimed_at").values_list("claimed_at", "ended_at"))
    # The first runs start before all are queued, and the last may not have ended.
    pairs = pairwise([(claimed, ended) for claimed, ended in rows[5:] if ended is not None])
    return [(later[0] - earlier[1]).total_seconds() * 1000 for earlier, later in pairs]


def _idle_ms(count: int) -> list[float]:
    """Return the milliseconds from queueing to claim, for runs that arrive one by one."""
    from runs.models import AgentRun

    ids = []
    for _ in range(count):
        ids.append(_queue("short"))
        time.sleep(APART_S)
    _wait_until_claimed(ids)
    rows = AgentRun.objects.filter(pk__in=ids).values_list("queued_at", "started_at")
    return [(started - queued).total_seconds() * 1000 for queued, started in rows if started is not None]


def _queue(fixture: str, *, pace_s: float = 0) -> UUID:
    from agentops.accounts.models import Project
    from runs.lifecycle import creation
    from runs.models import Agent

    project, _ = Project.objects.get_or_create(slug="bench", defaults={"name": "Bench"})
    values = {"provider": "fixture", "model": fixture, "tools": ["recorded"], "max_steps": LONG + 1,
              "settings": {"pace": pace_s} if pace_s else {}}  # fmt: skip
    agent, _ = Agent.objects.get_or_create(project=project, slug=fixture, defaults=values)
    run_id: UUID = creation.create(project, agent, payload.PROMPT, by="bench").pk
    return run_id


def _wait_until_claimed(ids: list[UUID]) -> None:
    from runs.models import AgentRun

    until = time.monotonic() + MOST_S
    while AgentRun.objects.filter(pk__in=ids, started_at=None).exists():
        if time.monotonic() > until:
            raise RuntimeError("the runs are not claimed")
        time.sleep(0.1)


@contextmanager
def _worker(workspace: Workspace, name: str) -> Iterator[None]:
    """Start a worker with one slot, and wait until it is ready."""
    alive = workspace.folder / f"alive-{name}"
    command: list[str | Path] = [Path(sys.executable).with_name("agentops"), "worker", "--concurrency", "1", "--beat"]
    environment = os.environ | {"AGENTOPS_ALIVE_FILE": str(alive), "REDIS_URL": redis_url()}
    with running(command, environment, workspace.folder / f"{name}.log") as program:
        until = time.monotonic() + MOST_S
        while not alive.exists():
            if time.monotonic() > until or not program.alive():
                raise RuntimeError(program.last_line())
            time.sleep(0.02)
        yield
