"""The search over a million messages on PostgreSQL: the slowest of a hundred responses, by kind of query.

One client and one server process, on the loopback interface. The entries are generated in SQL. The speed of the indexer
is measured separately, on the events of real runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from uuid import UUID

import psycopg

from bench import long_search
from bench.list_requests import HttpClient, served, took_ms
from bench.list_rows import FilledSite, fill
from bench.report import Row, heading, mid, note, percentile, show
from bench.workspace import Workspace, vacuum

LIMIT_MS = 100.0
QUICK_ENTRIES = 4_000
TIMES, QUICK_TIMES = 40, 2


def run(workspace: Workspace, *, steps: int, quick: bool, with_peers: bool, size: int = 1_000_000) -> None:
    count, times = (QUICK_ENTRIES, QUICK_TIMES) if quick else (size, TIMES)
    heading(f"search: {count:,} messages and tool calls on PostgreSQL, 1 client")
    from bench.search_rows import PER_RUN, searches

    filled = fill(workspace, count // PER_RUN + 1)
    _fill(workspace, filled, count)
    with served(workspace, "bench.wsgi_site:application") as product:
        client = HttpClient(product, filled)
        urls = {**searches(count), "the page": "/p/bench/search?q=file"}
        took = report({name: partial(took_ms, client, url, times) for name, url in urls.items()})
    _compare(workspace, took["a part of words"])
    long_search.measure(workspace, filled, after=count, run_id=_run_id, quick=quick)


def report(measurements: dict[str, Callable[[], list[float]]]) -> dict[str, list[float]]:
    """Measure and show the responses of each search, and of all together. Return their milliseconds."""
    took: dict[str, list[float]] = {}
    for name, measure in measurements.items():
        took[name] = measure()
        slow = percentile(took[name], 95)
        show(Row(f"{name}, p95", f"{slow:.1f} ms", f"limit: {LIMIT_MS:.0f} ms", slow / LIMIT_MS, at_most=1.0))
    every = [value for values in took.values() for value in values]
    slow = percentile(every, 95)
    show(Row("all of them, p95", f"{slow:.1f} ms", f"limit: {LIMIT_MS:.0f} ms", slow / LIMIT_MS, at_most=1.0))
    note(f"p50 {mid(every):.1f} ms, p99 {percentile(every, 99):.1f} ms, longest {max(every):.1f} ms")
    return took


def _fill(workspace: Workspace, filled: FilledSite, count: int) -> None:
    """Copy the entries, and build their index afterwards, which takes most of the time."""
    from bench.search_rows import COLUMNS, entries

    began = time.monotonic()
    with workspace.connect() as connection:
        with without_text_index(connection):
            with connection.cursor().copy(f"COPY agent_run_search_entries ({', '.join(COLUMNS)}) FROM STDIN") as copy:
                for row in entries(count, filled.project_id, _run_id):
                    copy.write_row(row)
            connection.execute("UPDATE agent_run_search_position SET entry_id = %s, event_id = 1000000000", [count])
            note(f"{count:,} entries copied in {time.monotonic() - began:.0f} s")
        sizes = connection.execute(
            "SELECT pg_table_size('agent_run_search_entries'), pg_relation_size('search_entry_texts'),"
            " (SELECT sum(length(text)) FROM agent_run_search_entries)"
        ).fetchone() or (0, 0, 1)
    vacuum(workspace)
    note(f"indexed after {time.monotonic() - began:.0f} s: table {sizes[0] / sizes[2]:.2f} x and index"
         f" {sizes[1] / sizes[2]:.2f} x the {sizes[2] / 2**20:,.0f} MiB of texts")  # fmt: skip


@contextmanager
def without_text_index(connection: psycopg.Connection) -> Iterator[None]:
    """Drop the index of the texts, and rebuild it after the block, because inserting many entries into it is slow."""
    connection.execute("SET session_replication_role = replica")
    connection.execute("SET synchronous_commit = off")
    connection.execute("SET maintenance_work_mem = '1GB'")
    (definition,) = connection.execute(
        "SELECT indexdef FROM pg_indexes WHERE indexname = 'search_entry_texts'"
    ).fetchone() or ("",)
    connection.execute("DROP INDEX search_entry_texts")
    yield
    connection.execute(definition)


def _compare(workspace: Workspace, took: list[float]) -> None:
    """Compare a search for parts of words with a query without an index: one pass over all texts."""
    statement = "SELECT id FROM agent_run_search_entries WHERE text ILIKE %s ORDER BY id DESC LIMIT 200"
    passes = []
    with workspace.connect() as connection:
        connection.execute("SET enable_bitmapscan = off")
        for _ in range(3):
            began = time.perf_counter()
            connection.execute(statement, ["%zxqjvwkzz%"]).fetchall()
            passes.append((time.perf_counter() - began) * 1000)
    slow = percentile(took, 95)
    show(
        Row("a part of words, against ILIKE", f"{slow:.1f} ms", f"{mid(passes):.0f} ms", mid(passes) / slow, at_least=1)
    )


def _run_id(number: int) -> UUID:
    """Return the ID of a run of bench.list_rows."""
    return UUID(f"{number:012x}70008000{number:012x}")
