"""How a site behaves as its tables grow: lists, search, sweep, claim, append and retention at growing sizes.

Each run has the rows of one step: 10 events, 3 messages, a call, a checkpoint, an attempt and its usage. One run in ten
received a message. The tables grow in place, up to `--size` runs or a share of the free disk. The machine may be
shared, so costs are compared by the processor time of PostgreSQL and its client process. The bytes of a larger site are
extrapolated from the last runs.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.growth_meters import WARM_UP, ProcessorClock, TableSizes, TurnTimes, free_bytes, own_backend, table_sizes
from bench.http_client import SiteReader
from bench.list_rows import APART_S
from bench.lists import PAGE, RUNS
from bench.processes import served
from bench.report import Row, heading, mid, note, percentile, show
from bench.sweep import counting
from bench.workspace import Options, Workspace

if TYPE_CHECKING:
    from bench.growth_rows import GrowingSite

SIZES, QUICK_SIZES = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000), (1_000, 2_000)
TURNS, QUICK_TURNS = 30, 3
#: Seconds of retention.
WINDOW_S, QUICK_WINDOW_S = 15.0, 1.0
GOAL, GOAL_AT = 1.5, 10_000_000
#: The share of the free disk for the largest site, and the bytes of a run before they are measured.
DISK_SHARE, RUN_BYTES = 0.6, 15_000
#: A project's retention in days. All generated runs are older.
KEPT_DAYS = 10


@dataclass
class SizeResult:
    """The measurements at one size."""

    runs: int
    sizes: TableSizes
    #: Operation → milliseconds of processor time per turn.
    cpu_ms: dict[str, float] = field(default_factory=dict)

    def add(self, what: str, took: TurnTimes) -> None:
        self.cpu_ms[what] = took.cpu_ms
        wall = took.wall_ms
        figures = f"quickest {min(wall):.1f}, p50 {mid(wall):.1f}, p95 {percentile(wall, 95):.1f} ms"
        show(Row(what, f"CPU: {took.cpu_ms:.2f} ms", figures))


def run(workspace: Workspace, options: Options) -> None:
    from bench.growth_rows import GrowingSite

    sizes = QUICK_SIZES if options.quick else (*(one for one in SIZES if one < options.size), options.size)
    free = free_bytes(workspace)
    site = GrowingSite.create(workspace)
    results: list[SizeResult] = []
    for count in sizes:
        expected = count * (results[-1].sizes.total / results[-1].runs if results else RUN_BYTES)
        if expected > DISK_SHARE * free:
            note(f"{count:,} runs would take {expected / 1e9:.0f} GB of {free / 1e9:.0f} GB free: not measured")
            break
        results.append(_measure(site, count, quick=options.quick))
    if results:
        _compare(results)


def _measure(site: GrowingSite, count: int, *, quick: bool) -> SizeResult:
    turns, window_s = (QUICK_TURNS, QUICK_WINDOW_S) if quick else (TURNS, WINDOW_S)
    began = time.monotonic()
    site.grow(count)
    heading(f"growth: {count:,} runs, {turns} turns each")
    result = SizeResult(count, table_sizes(site.workspace))
    note(f"generated in {time.monotonic() - began:.0f} s")
    _show_sizes(result)
    _measure_requests(site, result, turns)
    _measure_worker(site, result, turns)
    _measure_retention(site, result, window_s)
    return result


def _show_sizes(result: SizeResult) -> None:
    from bench.growth_rows import EVENTS

    sizes, events = result.sizes, result.runs * EVENTS
    show(Row("all tables and indexes", f"{sizes.total / 1e9:.2f} GB", f"{sizes.total / result.runs:,.0f} B per run"))
    event, index = sizes.rows["agent_run_events"] / events, sizes.indexes["agent_run_events"] / events
    show(Row("an event", f"{event:.0f} B", f"its indexes: {index:.0f} B"))


def _measure_requests(site: GrowingSite, result: SizeResult, turns: int) -> None:
    middle = _iso(site, result.runs // 2)
    with served(site.workspace) as product:
        reader = SiteReader(product, site.filled())
        deep = reader.json(f"{RUNS}?created_before={middle}")["next"]
        clock = ProcessorClock(site.workspace, product.pids())
        for name, url in _urls(site, middle, deep).items():
            result.add(name, clock.turns(partial(reader.get, url), turns))


def _urls(site: GrowingSite, middle: str, deep: str) -> dict[str, str]:
    """Return the URLs to request, by their content."""
    from bench.search_rows import SEARCH, own_word, run_id

    page, in_the_middle = "/p/bench/runs", run_id(site.count // 2)
    word = own_word(site.entry_count // 2)
    return {
        "API: newest runs": f"{RUNS}?limit={PAGE}",
        "API: runs in the middle": deep,
        "API: failed runs": f"{RUNS}?status=failed",
        "API: running runs": f"{RUNS}?status=running",
        "API: runs with a label of all": f"{RUNS}?label=nightly",
        "API: runs with a label of 1 %": f"{RUNS}?label=release",
        "API: runs with a label of 20 in a million": f"{RUNS}?label=rare",
        "page: newest runs": page,
        "page: runs in the middle": f"{page}?created_before={middle[:16]}",
        "page: failed runs": f"{page}?status=failed",
        "page: runs with a label of 1 %": f"{page}?label=release",
        "page: runs with a label of 20 in a million": f"{page}?label=rare",
        "API: events of a run": f"{RUNS}/{in_the_middle}/events",
        "page: a run": f"/runs/{in_the_middle}",
        "search: a word of one text": f"{SEARCH}?q={word}",
        "search: a frequent word, newest first": f"{SEARCH}?q=file&order=newest&limit={PAGE}",
        "search: a word of no text": f"{SEARCH}?q=zxqjvwkzz",
    }


def _measure_worker(site: GrowingSite, result: SizeResult, turns: int) -> None:
    """Measure the queries of a worker: a sweep that finds nothing, a claim of one queued run, and an append."""
    from bench import writers
    from runs.lifecycle import transitions
    from runs.models import AgentRun
    from runs.worker.sweep import sweep

    clock = ProcessorClock(site.workspace, [os.getpid()])
    result.add("sweep", clock.turns(partial(sweep, now=True), turns))
    claimed: list[Any] = []

    def claim() -> None:
        run_id = waiting[len(claimed)]
        assert transitions.claim(run_id, "bench") is not None
        claimed.append(run_id)

    for _ in range(turns + WARM_UP):
        site.queue()
    waiting = list(AgentRun.objects.runnable().values_list("pk", flat=True))
    result.add("claim", clock.turns(claim, turns))
    site.end(claimed)
    result.add("append", clock.turns(lambda: writers.append(site.open_run, [secrets.token_hex(16)]), turns))


def _measure_retention(site: GrowingSite, result: SizeResult, window_s: float) -> None:
    clock = ProcessorClock(site.workspace, [os.getpid()], only=own_backend())
    began, before_s = time.monotonic(), clock.spent_s()
    with counting() as statements:
        removed = _remove_for(site, window_s)
        took_s = time.monotonic() - began
    runs = removed["agent_runs"]
    cpu_ms = (clock.spent_s() - before_s) / max(runs, 1) * 1000
    result.cpu_ms["retention, a run"] = cpu_ms
    figures = f"{runs / took_s:.1f} runs/s: {runs:,} in {took_s:.0f} s"
    show(Row("retention", f"{removed.total() / took_s:,.0f} rows/s", figures))
    note(f"retention, a run: {statements.count / max(runs, 1):.0f} statements, CPU: {cpu_ms:.1f} ms")


def _remove_for(site: GrowingSite, seconds: float) -> Counter[str]:
    """Apply the project's retention for some time. Return the number of removed rows by table."""
    from agentops.accounts.access import SYSTEM
    from runs.upkeep import retention

    report = retention.RemovalReport(site.project, KEPT_DAYS)
    until = time.monotonic() + seconds
    with closing(retention.apply(report, by=SYSTEM)) as removal:
        for _ in removal:
            if time.monotonic() > until:
                break
    return report.rows


def _compare(results: list[SizeResult]) -> None:
    """Show the cost at the largest size relative to the smallest, and the bytes of a much larger site."""
    small, large = results[0], results[-1]
    heading(f"growth: from {small.runs:,} to {large.runs:,} runs")
    for what, took in large.cpu_ms.items():
        first = small.cpu_ms[what]
        show(Row(what, f"CPU: {took:.2f} ms", f"{first:.2f} ms", took / first if first else None, at_most=GOAL))
    before = results[-2] if len(results) > 1 else SizeResult(0, TableSizes({}, {}))
    per_run = (large.sizes.total - before.sizes.total) / (large.runs - before.runs)
    total = large.sizes.total + per_run * (GOAL_AT - large.runs)
    note(f"{per_run:,.0f} bytes for each further run; {GOAL_AT:,} runs: {total / 1e9:,.0f} GB")


def _iso(site: GrowingSite, number: int) -> str:
    """Return the time at which the run with this number was created."""
    return (site.begin + timedelta(seconds=APART_S * number)).strftime("%Y-%m-%dT%H:%M:%SZ")
