"""The search over a million messages on SQLite, measured as in bench.search on PostgreSQL.

Runs in a separate process, because Django's settings name one database. Uses Django's test client in that process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from bench.report import heading, note
from bench.workspace import Workspace

#: The product creates the runs one by one.
MAX_RUNS = 500


def run(workspace: Workspace, *, steps: int, quick: bool, with_peers: bool, size: int = 1_000_000) -> None:
    from bench.search import QUICK_ENTRIES

    count = QUICK_ENTRIES if quick else size
    heading(f"search_sqlite: {count:,} messages and tool calls on SQLite, 1 client")
    home = workspace.folder / "home-sqlite"
    environment = {**os.environ, "AGENTOPS_HOME": str(home)}
    del environment["DATABASE_URL"]
    command = [sys.executable, "-m", "bench.search_sqlite", str(count), "quick" if quick else "whole"]
    subprocess.run(command, env=environment, check=True)


def _measure(count: int, *, quick: bool) -> None:
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    headers = _fill(count)
    from django.conf import settings
    from django.test import Client

    from bench.search import QUICK_TIMES, TIMES, report
    from bench.search_rows import searches

    settings.ALLOWED_HOSTS.append("testserver")
    client, times = Client(headers=headers), QUICK_TIMES if quick else TIMES
    report({name: partial(_took, client, url, times) for name, url in searches(count).items()})


def _took(client: Any, url: str, times: int) -> list[float]:
    """Return the milliseconds of each request except the first two."""
    took = []
    for _ in range(times + 2):
        began = time.perf_counter()
        answer = client.get(url)
        took.append((time.perf_counter() - began) * 1000)
        if answer.status_code != 200:
            raise RuntimeError(f"{url}: {answer.status_code} {answer.content[:300]!r}")
    return took[2:]


def _fill(count: int) -> dict[str, str]:
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
        note(f"{count:,} entries of {len(runs)} runs inserted in {time.monotonic() - began:.0f} s")
        cursor.execute(
            "INSERT INTO agent_run_search_grams (rowid, folded)"
            " SELECT id, COALESCE(folded, LOWER(text)) FROM agent_run_search_entries ORDER BY id"
        )
        cursor.execute(trigger)
    SearchPosition.objects.update_or_create(pk=1, defaults={"event_id": 10**9, "entry_id": count})
    size = Path(str(connection.settings_dict["NAME"])).stat().st_size
    note(f"indexed after {time.monotonic() - began:.0f} s: {size / 2**20:,.0f} MiB")
    return {"authorization": f"Bearer {create_key(project, name='bench', scopes=['read'], actor=SYSTEM).plain}"}


if __name__ == "__main__":
    _measure(int(sys.argv[1]), quick=sys.argv[2] == "quick")
