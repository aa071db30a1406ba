"""The bytes of a site's tables and indexes, and the free space on their disk."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

from bench.report import Row, note, show
from bench.workspace import Workspace

_SIZES = """
SELECT relname, pg_table_size(relid), pg_indexes_size(relid), n_dead_tup FROM pg_stat_user_tables
WHERE schemaname = 'public' AND pg_total_relation_size(relid) > 0"""


@dataclass(frozen=True)
class TableSizes:
    """Bytes by table."""

    rows: dict[str, int]
    indexes: dict[str, int]
    #: The number of dead rows, by PostgreSQL's statistics.
    dead: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.rows.values()) + sum(self.indexes.values())


def table_sizes(workspace: Workspace) -> TableSizes:
    with workspace.connect() as connection:
        found = connection.execute(_SIZES).fetchall()
    return TableSizes(
        {table: rows for table, rows, *_ in found},
        {table: indexes for table, _, indexes, _ in found},
        {table: dead for table, *_, dead in found},
    )


def show_sizes(sizes: TableSizes, runs: int, events: int) -> None:
    """Show the bytes of a run and of an event, and the largest tables."""
    show(Row("all tables and indexes", f"{sizes.total / 1e9:.2f} GB", f"{sizes.total / runs:,.0f} B per run"))
    event, index = sizes.rows["agent_run_events"] / events, sizes.indexes["agent_run_events"] / events
    show(Row("an event", f"{event:.0f} B", f"its indexes: {index:.0f} B"))
    for table, size in sorted(sizes.rows.items(), key=lambda item: -item[1])[:6]:
        note(f"{table:<28} {size / runs:>8,.0f} B per run, indexes {sizes.indexes[table] / runs:>8,.0f} B")


def free_bytes(workspace: Workspace) -> int:
    """Return the free space of the database's disk, or of the folder's disk if the database is on another machine."""
    with workspace.connect() as connection:
        [folder] = connection.execute("SHOW data_directory").fetchone() or ("",)
    return shutil.disk_usage(folder if os.access(folder, os.F_OK) else workspace.folder).free
