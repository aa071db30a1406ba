"""A run of 50,000 events in the browser (G13): first paint, page weight, and memory while following it.

`python -m bench follow` follows for ten minutes; as part of `browser`, for one minute.
"""

from __future__ import annotations

from bench.long_pages import judge_visits
from bench.page_reader import Memory, PageReader, chromium, reading
from bench.publishing import PublisherProcess
from bench.report import Row, heading, note, show
from bench.stacks import Stack, scaled
from bench.stream_servers import fresh_run, own_publisher
from bench.workspace import Workspace

#: "Flat", with room for memory that a collection leaves.
MEMORY_GOAL = 1.2
VISITS = 5
RATE = 20.0
#: Enough to fill the page with the maximum number of rows.
FIRST = 3000
FIRST_SIZE = 100


def run(workspace: Workspace, *, steps: int, quick: bool, with_peers: bool) -> None:
    heading("follow: a tab follows a run of 50,000 events for ten minutes")
    if chromium() is None:
        show(Row("all browser benchmarks", "-", "Chromium is not installed"))
        return
    with scaled(workspace, workers=0) as stack:
        long_page(workspace, stack, events=50_000, seconds=30 if quick else 600)


def long_page(workspace: Workspace, stack: Stack, *, events: int, seconds: int) -> None:
    from bench import long_run

    run_id, opening = fresh_run()
    long_run.fill(run_id, events)
    with own_publisher(workspace, "steps") as publisher, reading(stack) as reader:
        publisher.skip(str(run_id), events)
        visits = [reader.open_run(str(run_id)) for _ in range(VISITS)]
        before, after = _follow(reader, publisher, str(run_id), seconds)
        behind = opening + publisher.published(str(run_id)) - reader.newest()
    if behind > long_run.PER_STEP:
        raise RuntimeError(f"the page is {behind} events behind")
    judge_visits(f"{events:,} events", visits)
    ratio = after.heap_mb / before.heap_mb
    figures = (f"{after.heap_mb:.1f} MB", f"before: {before.heap_mb:.1f} MB")
    show(Row(f"memory of the tab after {seconds} s", *figures, ratio, at_most=MEMORY_GOAL))
    note(f"nodes {before.nodes:,} before, {after.nodes:,} after; {RATE:.0f} events/s")


def _follow(reader: PageReader, publisher: PublisherProcess, run_id: str, seconds: int) -> tuple[Memory, Memory]:
    """Return the memory of the page after loading, and after following for some time."""
    publisher.publish(run_id, bursts=FIRST // FIRST_SIZE, rate=RATE / 2, size=FIRST_SIZE)
    reader.page.wait_for_timeout(2000)
    before = reader.memory()
    publisher.publish(run_id, bursts=int(RATE * seconds), rate=RATE)
    reader.page.wait_for_timeout(2000)
    return before, reader.memory()
