"""Runs of 1,000, 10,000 and 50,000 events of real sessions in Chromium: opening, jumping to a step, scrolling back, and
following live at 50 events per second (G13, G19).

The figures are compared with goals, because no peer exists.
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from bench.page_reader import PageReader, Visit, chromium, reading
from bench.publishing import PublisherProcess
from bench.report import Row, heading, mid, note, percentile, show
from bench.stacks import Stack, scaled
from bench.stream_servers import fresh_run, own_publisher
from bench.workspace import Options, Workspace

#: Recorded sessions outside the repository. Without them, the events are those of the package's recordings.
SHARED = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
SIZES = (1_000, 10_000, 50_000)
#: A session whose repetition, up to the longest run, stays within the size limit of an import.
SESSION = SHARED / "claude-code" / "5c-1039ad85f4-0.jsonl"
PAINT_MS, STEP_MS, TASK_MS, EVENT_MS, WEIGHT_KB = 1500, 500, 100, 4, 300
MOST_ROWS = 600
VISITS, JUMPS, PAGES = 5, 5, 12
RATE = 50.0


def run(workspace: Workspace, options: Options) -> None:
    heading("browser: runs of 1,000 to 50,000 events in headless Chromium, on an idle machine")
    if chromium() is None:
        show(Row("all browser benchmarks", "-", "Chromium is not installed"))
        return
    sizes = SIZES[:1] if options.is_small else SIZES
    with scaled(workspace, workers=0) as stack:
        for size in sizes:
            _measure(workspace, stack, size, seconds=4 if options.quick else 20)


def _measure(workspace: Workspace, stack: Stack, size: int, *, seconds: int) -> None:
    from bench import long_run

    read = _imported(workspace, size)
    live, opening = fresh_run()
    long_run.fill(live, size)
    with own_publisher(workspace, "steps") as publisher, reading(stack) as reader:
        publisher.skip(str(live), size)
        _read(reader, str(read or live), f"{size:,} events")
        _follow(reader, publisher, str(live), f"{size:,} events", seconds)
        behind = opening + publisher.published(str(live)) - reader.newest()
    if behind > long_run.PER_STEP:
        raise RuntimeError(f"the page is {behind} events behind")


def _imported(workspace: Workspace, size: int) -> UUID | None:
    """Import a run of the recorded session. Return None if it is not on this machine."""
    from bench import long_run

    if SESSION.is_file():
        return long_run.imported(workspace, SESSION, size)
    note(f"no recording at {SESSION}: the run has events of the package's recordings")
    return None


def _read(reader: PageReader, run_id: str, what: str) -> None:
    visits = [reader.open_run(run_id, live=False) for _ in range(VISITS)]
    _judge_visits(what, visits)
    last = reader.last_step()
    steps = [max(last * part // JUMPS, 1) for part in range(1, JUMPS + 1)]
    took = [reader.go_to_step(run_id, step) for step in steps]
    _judge(f"go to a step, p95, {what}", percentile(took, 95), STEP_MS, "ms")
    note(f"steps {', '.join(map(str, steps))}: {', '.join(f'{each:.0f}' for each in took)} ms")
    reader.open_run(run_id, live=False)
    back, rows = reader.scroll_back(PAGES)
    _judge(f"scroll back, longest task, {what}", back.longest_ms, TASK_MS, "ms")
    _judge(f"scroll back, rows kept, {what}", rows, MOST_ROWS, "rows")
    memory = reader.memory()
    note(f"after {PAGES} pages: {memory.heap_mb:.1f} MB, {memory.nodes:,} nodes; layout shift {back.shift:.3f}")


def _follow(reader: PageReader, publisher: PublisherProcess, run_id: str, what: str, seconds: int) -> None:
    reader.open_run(run_id)
    reader.page.wait_for_timeout(1000)
    before = reader.memory()
    events = int(RATE * seconds)
    with reader.busy() as so_far:
        publisher.publish(run_id, bursts=events, rate=RATE)
        reader.page.wait_for_timeout(500)
        busy = so_far()
    reader.page.wait_for_timeout(4000)  # Wait until the digest is stable.
    after = reader.memory()
    _judge(f"main thread per live event, {what}", busy.cpu_ms / events, EVENT_MS, "ms")
    _judge(f"longest task while live, {what}", busy.longest_ms, TASK_MS, "ms")
    note(
        f"{RATE:.0f} events/s for {seconds} s; layout shift {busy.shift:.3f}; tab {before.heap_mb:.1f} MB, "
        f"then {after.heap_mb:.1f} MB and {after.nodes:,} nodes"
    )


def _judge_visits(what: str, visits: list[Visit]) -> None:
    _judge(f"first paint, {what}", mid([visit.painted for visit in visits]), PAINT_MS, "ms")
    _judge(f"page weight, {what}", mid([visit.size / 1000 for visit in visits]), WEIGHT_KB, "kB")
    answered, ready = mid([visit.answered for visit in visits]), mid([visit.ready for visit in visits])
    parts = f"first byte {answered:.0f} ms, ready {ready:.0f} ms"
    note(f"{parts}; {visits[0].files} files, cache empty; {len(visits)} visits")


def _judge(what: str, value: float, limit: float, unit: str) -> None:
    figure = f"{value:.1f} {unit}" if value < 10 else f"{value:,.0f} {unit}"
    show(Row(what, figure, f"the goal: {limit:,} {unit}", value / limit, at_most=1))
