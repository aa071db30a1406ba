"""The pages in Chromium: from a commit to the row, from Start to the first step (G12), and long runs (G13, G19).

The figures are compared with goals, because no peer exists. Prints idle memory too (G15).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from uuid import UUID

from bench import long_pages
from bench.following import long_page
from bench.page_reader import PageReader, Start, chromium, reading
from bench.publishing import PublisherProcess
from bench.report import Row, heading, mid, note, percentile, show
from bench.stacks import Stack, embedded, scaled
from bench.stream_servers import fresh_run, own_publisher
from bench.workspace import Workspace

EMBEDDED_MS, SCALED_MS = 150, 250
EMBEDDED_MIB, SCALED_MIB = 200, 500
#: Relative to the time in which the same browser shows the page of a completed run.
START_GOAL = 2.0
#: The first clicks include one-time work of the process and the browser.
WARM_UP = 2
#: Below this number of --steps, all sizes are smaller.
WHOLE = 1000


def run(workspace: Workspace, *, steps: int, quick: bool, with_peers: bool) -> None:
    heading("browser: headless Chromium on an idle machine")
    if chromium() is None:
        show(Row("all browser benchmarks", "-", "Chromium is not installed"))
        return
    small = steps < WHOLE
    clicks = 1 if small else 4 if quick else 25
    with embedded(workspace) as stack:
        idle_memory("embedded", stack, EMBEDDED_MIB)
        starts("embedded", stack, clicks, EMBEDDED_MS)
    with scaled(workspace) as stack:
        idle_memory("web, worker and clock", stack, SCALED_MIB)
        starts("scaled", stack, clicks, SCALED_MS)
    events, seconds = (1_000, 1) if small else (5_000, 5) if quick else (50_000, 60)
    sizes = long_pages.SIZES[:1] if small else long_pages.SIZES
    with scaled(workspace, workers=0) as stack:
        rows(workspace, stack, 2 if small else 10 if quick else 60)
        long_page(workspace, stack, events=events, seconds=seconds)
        long_pages.measure(workspace, stack, sizes, seconds=4 if quick else 20)


def idle_memory(what: str, stack: Stack, limit: float) -> None:
    used = stack.rss_mib()
    show(Row(f"idle memory, {what}", f"{used:.0f} MiB", f"the goal: {limit} MiB", used / limit, at_most=1))


def starts(what: str, stack: Stack, clicks: int, limit: float) -> None:
    """Click Start repeatedly, each time after the previous run has ended."""
    with reading(stack) as reader:
        for _ in range(WARM_UP):
            reader.start_a_run()
        made, opened = [], []
        for _ in range(clicks):
            made.append(reader.start_a_run())
            opened.append(reader.open_again())
    seen = [start.seen for start in made]
    p95 = percentile(seen, 95)
    show(Row(f"Start to visible step, p95, {what}", f"{p95:.0f} ms", f"the goal: {limit} ms", p95 / limit, at_most=1))
    ratio, ended = mid(seen) / mid(opened), f"page of an ended run: {mid(opened):.0f} ms"
    show(Row(f"Start to visible step, p50, {what}", f"{mid(seen):.0f} ms", ended, ratio, at_most=START_GOAL))
    note(f"longest {max(seen):.0f} ms, {clicks} clicks; {_parts(made)}")


def rows(workspace: Workspace, stack: Stack, samples: int) -> None:
    """Measure the time from the commit of an event in another process to its row in an open page."""
    run_id, before = fresh_run()
    with own_publisher(workspace) as publisher, reading(stack) as reader:
        reader.open_run(str(run_id))
        waits = _waits(reader, publisher, run_id, before, samples)
    if len(waits) < samples:
        raise RuntimeError(f"{samples - len(waits)} of {samples} rows did not come")
    p95 = percentile(waits, 95)
    show(Row("commit to row in the page, p95", f"{p95:.1f} ms", f"p50: {percentile(waits, 50):.1f} ms"))


def _waits(reader: PageReader, publisher: PublisherProcess, run_id: UUID, before: int, samples: int) -> list[float]:
    publisher.publish(str(run_id), bursts=WARM_UP, rate=4)
    # Not a divisor of any interval in the page, so that each event meets the page at another moment.
    stamps = publisher.publish(str(run_id), bursts=samples, rate=4.37)
    reader.page.wait_for_timeout(1500)
    came = reader.rows()
    ahead = time.time() - time.monotonic()
    return [
        (came[before + number] - (committed / 1e9 + ahead)) * 1000
        for number, (_, committed) in stamps.items()
        if before + number in came
    ]


def _parts(made: Sequence[Start]) -> str:
    """Return the medians of the parts of the time, as text."""
    parts = {
        "form answered": mid([start.posted for start in made]),
        "page answered": mid([start.answered for start in made]),
        "painted": mid([start.painted for start in made]),
        "step in the page": mid([start.in_page for start in made]),
    }
    return ", ".join(f"{name} {ms:.0f}" for name, ms in parts.items())
