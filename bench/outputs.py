"""Whole outputs of tools: in the row of their call, as the product stores them, or in a separate table of pieces.

On PostgreSQL, and on SQLite in a separate process. Each call has an output of 16 Mi characters, the longest that is
stored, or of 1 Mi with fewer --steps. The benchmark measures the commit of a result, the list of calls, an update of a
row, reading one output, and bytes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.payload import Prose
from bench.report import Row, heading, mid, show
from bench.workspace import Workspace, vacuum

CALLS, QUICK_CALLS = 20, 3
#: Characters of a piece in the table of pieces.
PIECE = 256 * 1024
LAYOUTS = ("row", "pieces")
PIECES = "bench_output_pieces"


def run(workspace: Workspace, *, steps: int, quick: bool, with_peers: bool) -> None:
    count, mi = QUICK_CALLS if quick or steps < 1000 else CALLS, 16 if steps >= 1000 else 1
    heading(f"outputs: {count} outputs of {mi} Mi characters in the row of their call, and in a table of pieces")
    _measure("PostgreSQL", count, mi, lambda: vacuum(workspace))
    environment = {**os.environ, "AGENTOPS_HOME": str(workspace.folder / "home-sqlite")}
    del environment["DATABASE_URL"]
    subprocess.run([sys.executable, "-m", "bench.outputs", str(count), str(mi)], env=environment, check=True)


def _on_sqlite(count: int, mi: int) -> None:
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    _measure("SQLite", count, mi, lambda: None)


def _measure(database: str, count: int, mi: int, settle: Callable[[], None]) -> None:
    """Measure both layouts with the same texts, and show a row for each figure."""
    figures = {}
    for layout in LAYOUTS:
        before = _stored_bytes()
        stored = StoredOutputs(layout, count, mi)
        size = _stored_bytes() - before
        settle()
        figures[layout] = {
            "commit of a result": mid(stored.commits),
            "list of the calls": _took(stored.list_calls),
            "update of a row": _took(stored.update_row),
            "reading an output": _took(stored.read_output),
            "MiB": size / 2**20,
        }
    for name in figures["row"]:
        row, pieces = (figures[layout][name] for layout in LAYOUTS)
        unit = "MiB stored" if name == "MiB" else "ms"
        title = f"{database}: {'bytes' if name == 'MiB' else name}"
        show(Row(title, f"row: {row:,.1f} {unit}", f"pieces: {pieces:,.1f} {unit}", row / pieces))


class StoredOutputs:
    """A run whose calls have long outputs. `commits` has the milliseconds of each commit of a result."""

    def __init__(self, layout: str, count: int, mi: int) -> None:
        from agentops.accounts.access import SYSTEM
        from agentops.accounts.memberships import create_project
        from runs.lifecycle import creation
        from runs.models import Agent

        self._layout, self._length = layout, mi * 2**20
        project = create_project(f"bench-{layout}", "Bench", actor=SYSTEM)
        agent = Agent.objects.create(project=project, slug="bench", provider="fixture", model="claude-code-5c")
        self._run = creation.create(project, agent, "Read it all.", by="bench")
        self._calls = list(_running_calls(self._run, count))
        _make_table()
        texts = _texts(count, mi)
        self.commits = [self._commit(number, text) for number, text in enumerate(texts)]

    def _commit(self, number: int, text: str) -> float:
        from django.db import connection, transaction

        from runs.conversation import tool_results, transcript, writes
        from runs.conversation.tool_results import CallResult
        from runs.statuses import ToolStatus
        from runs.tools.output import MODEL_LIMIT

        call, position = self._calls[number], transcript.last_position(self._run.pk) + 1
        in_row = self._layout == "row"
        result = CallResult(ToolStatus.COMPLETED, text if in_row else text[: MODEL_LIMIT * 2])
        closed = tool_results.close(call, result, position=position, epoch=None, limit=MODEL_LIMIT)
        began = time.perf_counter()
        if in_row:
            writes.write(closed.commit)
        else:
            rows = [(call.pk.hex, at, text[at : at + PIECE]) for at in range(0, len(text), PIECE)]
            with transaction.atomic(), connection.cursor() as cursor:
                writes.write(closed.commit)
                cursor.executemany(f"INSERT INTO {PIECES} VALUES (%s, %s, %s)", rows)
        return (time.perf_counter() - began) * 1000

    def list_calls(self) -> None:
        from runs.queries.json_lists import RowSpan
        from runs.queries.record_columns import TOOL_CALLS, of_run_in

        page = TOOL_CALLS.page(of_run_in(self._run.project_id, self._run.pk, "t.run_id"), RowSpan(limit=50))
        if len(page) != len(self._calls):
            raise RuntimeError(f"{len(page)} of {len(self._calls)} calls are listed")

    def update_row(self) -> None:
        from runs.models import AgentRunToolCall

        AgentRunToolCall.objects.filter(pk=self._calls[0].pk).update(resolved_by="bench")

    def read_output(self) -> None:
        from django.db import connection

        from runs.models import AgentRunToolCall

        if self._layout == "row":
            length = len(AgentRunToolCall.objects.values_list("output", flat=True).get(pk=self._calls[0].pk))
        else:
            with connection.cursor() as cursor:
                key = self._calls[0].pk.hex
                cursor.execute(f"SELECT content FROM {PIECES} WHERE call = %s ORDER BY start", [key])
                length = sum(len(content) for (content,) in cursor.fetchall())
        if length != self._length:
            raise RuntimeError(f"the output has {length} characters")


def _running_calls(run: Any, count: int) -> Iterator[Any]:
    from django.utils import timezone

    from runs.models import AgentRunMessage, AgentRunToolCall

    message = AgentRunMessage.objects.filter(run=run).latest("position")
    for number in range(count):
        yield AgentRunToolCall.objects.create(
            run=run, message=message, call_id=f"call-{number}", tool_name="read_file", input={"path": "a"}, starts=1,
            status="running", step_number=1, created_at=timezone.now(), started_at=timezone.now(),
        )  # fmt: skip


def _texts(count: int, mi: int) -> Iterator[str]:
    """Yield texts of `mi` Mi characters. They repeat after 1 Mi, beyond the window of PostgreSQL's compression."""
    prose = Prose(7)
    for _ in range(count):
        yield prose.text(2**20) * mi


def _make_table() -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {PIECES} (call text, start integer, content text, PRIMARY KEY (call, start))"
        )


def _stored_bytes() -> int:
    from django.db import connection

    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT pg_database_size(current_database())")
            return int(cursor.fetchone()[0])
        # Free pages are not counted.
        sql = "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, "
        cursor.execute(f"{sql} pragma_page_size")
        return int(cursor.fetchone()[0])


def _took(act: Callable[[], None], times: int = 5) -> float:
    """Return the median milliseconds of an action, without the first call."""
    took = []
    for _ in range(times + 1):
        began = time.perf_counter()
        act()
        took.append((time.perf_counter() - began) * 1000)
    return mid(took[1:])


if __name__ == "__main__":
    _on_sqlite(int(sys.argv[1]), int(sys.argv[2]))
