"""What the growth of a site is measured by: bytes of tables and indexes, free space, and processor time.

On a shared machine, wall time depends more on other programs than on the size of the tables.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from bench.processes import process_cpu_s
from bench.workspace import Workspace

_SIZES = """
SELECT relname, pg_table_size(relid), pg_indexes_size(relid) FROM pg_stat_user_tables
WHERE schemaname = 'public' AND pg_total_relation_size(relid) > 0"""
#: Turns without measurement.
WARM_UP = 2
_BACKENDS = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"""


@dataclass(frozen=True)
class TurnTimes:
    """The wall time of each turn and the mean processor time of a turn, in milliseconds."""

    wall_ms: list[float]
    cpu_ms: float


class ProcessorClock:
    """Adds up the processor time of processes and of the connections to the database, in steps of 10 ms.

    `only` is the process of a single connection to count, instead of all connections to the database.
    """

    def __init__(self, workspace: Workspace, pids: Sequence[int], *, only: int | None = None) -> None:
        self._workspace = workspace
        self._pids = pids
        self._only = only

    def spent_s(self) -> float:
        """Return the processor time so far, in seconds."""
        backends = [self._only] if self._only is not None else self._backends()
        spent_s = 0.0
        for pid in (*self._pids, *backends):
            with suppress(OSError):  # The connection has closed.
                spent_s += process_cpu_s(pid)
        return spent_s

    def turns(self, act: Callable[[], Any], turns: int) -> TurnTimes:
        """Repeat an action, and measure it after a warm-up."""
        for _ in range(WARM_UP):
            act()
        wall_ms, begun_s = [], self.spent_s()
        for _ in range(turns):
            began = time.perf_counter()
            act()
            wall_ms.append((time.perf_counter() - began) * 1000)
        return TurnTimes(wall_ms, (self.spent_s() - begun_s) / turns * 1000)

    def _backends(self) -> list[int]:
        with self._workspace.connect() as connection:
            return [pid for (pid,) in connection.execute(_BACKENDS).fetchall()]


def own_backend() -> int:
    """Return the server process ID of this thread's database connection."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


@dataclass(frozen=True)
class TableSizes:
    """Bytes by table."""

    rows: dict[str, int]
    indexes: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.rows.values()) + sum(self.indexes.values())


def table_sizes(workspace: Workspace) -> TableSizes:
    with workspace.connect() as connection:
        found = connection.execute(_SIZES).fetchall()
    return TableSizes({table: rows for table, rows, _ in found}, {table: indexes for table, _, indexes in found})


def free_bytes(workspace: Workspace) -> int:
    """Return the free space of the database's disk, or of the folder's disk if the database is on another machine."""
    with workspace.connect() as connection:
        [folder] = connection.execute("SHOW data_directory").fetchone() or ("",)
    return shutil.disk_usage(folder if os.access(folder, os.F_OK) else workspace.folder).free
