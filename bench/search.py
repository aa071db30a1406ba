"""The search over a million messages, on PostgreSQL and on SQLite: the slowest responses, by kind of query.

On PostgreSQL, one client and one server process on the loopback interface. SQLite is measured in a separate process,
because Django's settings name one database, by Django's test client. The entries are generated.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from bench.http_client import SiteReader
from bench.list_rows import FilledSite, fill
from bench.processes import served
from bench.report import Row, heading, mid, note, percentile, show
from bench.workspace import Options, Workspace, vacuum

LIMIT_MS = 100.0
QUICK_ENTRIES = 4_000
TIMES, QUICK_TIMES = 40, 2
#: On SQLite, the product creates the runs one by one.
MAX_RUNS = 500


def run(workspace: Workspace, options: Options) -> None:
    from bench.search_rows import PER_RUN, searches

    count, times = (QUICK_ENTRIES, QUICK_TIMES) if options.quick else (options.size, TIMES)
    heading(f"search: {count:,} messages and tool calls on PostgreSQL, 1 client")
    filled = fill(workspace, count // PER_RUN + 1)
    _fill_postgresql(workspace, filled, count)
    with served(workspace) as product:
        reader = SiteReader(product, filled)
        urls = {**searches(count), "the page": "/p/bench/search?q=file"}
        _show({name: partial(reader.took_ms, url, times) for name, url in urls.items()})
    heading(f"search: {count:,} messages and tool calls on SQLite, 1 client")
    environment = {**os.environ, "AGENTOPS_HOME": str(workspace.folder / "home-sqlite")}
    del environment["DATABASE_URL"]
    command = [sys.executable, "-m", "bench.search", str(count), str(times)]
    subprocess.run(command, env=environment, check=True)


def _show(measurements: dict[str, Callable[[], list[float]]]) -> None:
    """Measure and show the responses of each search, and of all together, in milliseconds."""
    every = []
    for name, measure in measurements.items():
        took = measure()
        every += took
        _judge(name, took)
    _judge("all of them", every)
    note(f"p50 {mid(every):.1f} ms, p99 {percentile(every, 99):.1f} ms, longest {max(every):.1f} ms")


def _judge(name: str, took: list[float]) -> None:
    slow = percentile(took, 95)
    show(Row(f"{name}, p95", f"{slow:.1f} ms", f"limit: {LIMIT_MS:.0f} ms", slow / LIMIT_MS, at_most=1.0))


def _fill_postgresql(workspace: Workspace, filled: FilledSite, count: int) -> None:
    """Copy the entries, and build their index afterwards, which takes most of the time."""
    from bench.search_rows import COLUMNS, entries, run_id

    began = time.monotonic()
    with workspace.connect() as connection:
        with without_text_index(connection):
            with connection.cursor().copy(f"COPY agent_run_search_entries ({', '.join(COLUMNS)}) FROM STDIN") as copy:
                for row in entries(count, filled.project_id, run_id):
                    copy.write_row(row)
            connection.execute("UPDATE agent_run_search_position SET entry_id = %s, event_id = 1000000000", [count])
            note(f"{count:,} entries copied in {time.monotonic() - began:.0f} s")
        sizes = connection.execute(
            "SELECT pg_table_size('agent_run_search_entries'), pg_relation_size('search_entry_texts'),"
            " (SELECT sum(length(text)) FROM agent_run_search_entries)"
        ).fetchone() or (0, 0, 1)
    vacuum(workspace)
    note(
        f"indexed after {time.monotonic() - began:.0f} s: table {sizes[0] / sizes[2]:.2f} x and index"
        f" {sizes[1] / sizes[2]:.2f} x the {sizes[2] / 2**20:,.0f} MiB of texts"
    )


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


def _measure_sqlite(count: int, times: int) -> None:
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    headers = _fill_sqlite(count)
    from django.conf import settings
    from django.test import Client

    from bench.search_rows import searches

    settings.ALLOWED_HOSTS.append("testserver")
    client = Client(headers=headers)
    _show({name: partial(_took_ms, client, url, times) for name, url in searches(count).items()})


def _took_ms(client: Any, url: str, times: int) -> list[float]:
    """Return the milliseconds of each request except the first two."""
    took = []
    for _ in range(times + 2):
        began = time.perf_counter()
        answer = client.get(url)
        took.append((time.perf_counter() - began) * 1000)
        if answer.status_code != 200:
            raise RuntimeError(f"{url}: {answer.status_code} {answer.content[:300]!r}")
    return took[2:]


def _fill_sqlite(count: int) -> dict[str, str]:
    """Insert runs and entries, index the texts in one statement, and return the headers of a reader."""
    from django.db import connection
    from django.db.transaction import atomic
    from django.utils import timezone

    from agentops.accounts.access import SYSTEM
    from agentops.accounts.keys import create_key
    from agentops.accounts.memberships import create_project
    from bench.search_rows import COLUMNS, PER_RUN, entries
    from runs.lifecycle import creation
    from runs.models import Agent, AgentRun, SearchPosition

    began = time.monotonic()
    project = create_project("bench", "Bench", actor=SYSTEM)
    agent = Agent.objects.create(project=project, slug="bench", provider="fixture", model="claude-code-5c")
    with atomic():
        run_count = min(count // PER_RUN + 1, MAX_RUNS)
        runs = [creation.create(project, agent, "What went wrong?", by="bench").pk for _ in range(run_count)]
    AgentRun.objects.filter(pk__in=runs[::100]).update(status="failed", completed_at=timezone.now())
    with connection.cursor() as cursor, atomic():
        (trigger,) = cursor.execute("SELECT sql FROM sqlite_master WHERE name = 'search_entry_added'").fetchone()
        cursor.execute("DROP TRIGGER search_entry_added")
        rows = entries(count, project.pk.hex, lambda number: runs[number % len(runs)].hex)
        marks = ", ".join(["%s"] * len(COLUMNS))
        insert = f"INSERT INTO agent_run_search_entries ({', '.join(COLUMNS)}) VALUES ({marks})"
        at = COLUMNS.index("at")
        cursor.executemany(insert, ((*row[:at], row[at].strftime("%Y-%m-%d %H:%M:%S"), *row[at + 1 :]) for row in rows))
        cursor.execute(
            "INSERT INTO agent_run_search_grams (rowid, folded)"
            " SELECT id, COALESCE(folded, LOWER(text)) FROM agent_run_search_entries ORDER BY id"
        )
        cursor.execute(trigger)
    SearchPosition.objects.update_or_create(pk=1, defaults={"event_id": 10**9, "entry_id": count})
    size = Path(str(connection.settings_dict["NAME"])).stat().st_size
    note(f"{count:,} entries of {len(runs)} runs indexed in {time.monotonic() - began:.0f} s: {size / 2**20:,.0f} MiB")
    return {"authorization": f"Bearer {create_key(project, name='bench', scopes=['read'], actor=SYSTEM).plain}"}


if __name__ == "__main__":
    _measure_sqlite(int(sys.argv[1]), int(sys.argv[2]))
