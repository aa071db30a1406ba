"""Times with Redis as the broker: how long a free slot waits for the next run, and how long a new run waits for an idle
worker when another worker is busy.
"""

from __future__ import annotations

import time
from itertools import pairwise

from bench import payload
from bench.report import Row, heading, note, percentile, show
from bench.workers import wait_until_claimed, working
from bench.workspace import Options, Workspace, truncate_tables

#: The number of runs that wait for one slot, and of runs that arrive one by one at an idle worker.
WAITING, QUICK_WAITING = 100, 20
COMING, QUICK_COMING, APART_S = 40, 10, 0.3
#: The steps of a run that waits, and of a paced run that occupies a slot.
SHORT, LONG = 1, 400
#: Limits in milliseconds.
FREED_MS, IDLE_MS = 50, 200


def run(workspace: Workspace, options: Options) -> None:
    from bench.driven import created

    heading("places: from a place that becomes free to the claim of the next run, and to an idle worker")
    payload.write_fixture(workspace.fixtures(), "short", payload.steps(SHORT))
    payload.write_fixture(workspace.fixtures(), "long", payload.steps(LONG))
    with working(workspace, 1, slots=1):
        _show("a place that becomes free", _freed_ms(QUICK_WAITING if options.quick else WAITING), FREED_MS)
    truncate_tables(workspace)
    with working(workspace, 1, slots=1, name="busy"):
        wait_until_claimed([created("long", LONG, pace_s=1).pk])
        with working(workspace, 1, slots=1, name="idle"):
            _show("an idle worker beside a busy one", _idle_ms(QUICK_COMING if options.quick else COMING), IDLE_MS)
    note("milliseconds by the database's clock; the limit is for the 95th percentile")


def _show(what: str, values: list[float], limit_ms: float) -> None:
    high = percentile(values, 95)
    own = f"p50 {percentile(values, 50):.0f}, p95 {high:.0f} ms"
    show(Row(what, own, f"{limit_ms:.0f} ms", high / limit_ms, at_most=1))


def _freed_ms(count: int) -> list[float]:
    """Return the milliseconds from the end of each run to the claim of the next. All runs wait for one slot."""
    from bench.driven import created
    from runs.models import Attempt

    ids = [created("short", SHORT).pk for _ in range(count)]
    wait_until_claimed(ids)
    rows = list(Attempt.objects.filter(run__in=ids).order_by("claimed_at").values_list("claimed_at", "ended_at"))
    # The first runs start before all are queued, and the last may not have ended.
    pairs = pairwise([(claimed, ended) for claimed, ended in rows[5:] if ended is not None])
    return [(later[0] - earlier[1]).total_seconds() * 1000 for earlier, later in pairs]


def _idle_ms(count: int) -> list[float]:
    """Return the milliseconds from queueing to claim, for runs that arrive one by one."""
    from bench.driven import created
    from runs.models import AgentRun

    ids = []
    for _ in range(count):
        ids.append(created("short", SHORT).pk)
        time.sleep(APART_S)
    wait_until_claimed(ids)
    rows = AgentRun.objects.filter(pk__in=ids).values_list("queued_at", "started_at")
    return [(started - queued).total_seconds() * 1000 for queued, started in rows if started is not None]
