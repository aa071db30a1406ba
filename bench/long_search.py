"""The cost of the search index for long texts, in processor time and storage: all parts of a text compared with the
first.

An index with one entry per text would contain only the first part, which has the start and the end of the text.
"""

from __future__ import annotations

import time
from itertools import islice
from typing import Any

from bench.list_rows import FilledSite
from bench.report import Row, note, show
from bench.workspace import Workspace

TEXTS, QUICK_TEXTS = 40, 4
_SIZES = "SELECT pg_table_size('agent_run_search_entries'), pg_indexes_size('agent_run_search_entries')"


def measure(workspace: Workspace, filled: FilledSite, *, after: int, run_id: Any, quick: bool) -> None:
    """Index texts of the maximum indexed length, after the entry `after`, and show the cost of each."""
    from bench.search_rows import long_texts
    from runs.queries.searching.text_parts import LIMIT
    from runs.upkeep.search_texts import masked_parts

    texts = list(islice(long_texts(LIMIT), QUICK_TEXTS if quick else TEXTS))
    began = time.process_time()
    parts = [masked_parts(text) for text in texts]
    masking_ms = (time.process_time() - began) * 1000 / len(texts)
    show(Row(f"masking a text of {LIMIT:,} characters", f"{masking_ms:.0f} ms", f"{len(parts[0])} parts"))
    first = _stored(workspace, filled, [text[:1] for text in parts], after=after, run_id=run_id)
    rest = _stored(workspace, filled, [text[1:] for text in parts], after=after + len(texts), run_id=run_id)
    for title, (table, index, took_ms), length in (
        ("beginning and end", first, len(parts[0][0])),
        ("the other parts", rest, sum(map(len, parts[0][1:]))),
    ):
        note(f"{title}, {length:,} characters: table {table / len(texts) / 1024:,.0f} KiB, indexes"
             f" {index / len(texts) / 1024:,.0f} KiB, {took_ms:.1f} ms for each text")  # fmt: skip


def _stored(
    workspace: Workspace, filled: FilledSite, texts: list[list[str]], *, after: int, run_id: Any
) -> tuple[int, int, float]:
    """Insert the parts. Return the growth of the table and of its indexes in bytes, and the milliseconds for a text."""
    from bench.search_rows import COLUMNS, entry_row

    with workspace.connect() as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("VACUUM agent_run_search_entries")
        before = connection.execute(_SIZES).fetchone() or (0, 0)
        began = time.monotonic()
        marks = ", ".join(["%s"] * len(COLUMNS))
        statement = f"INSERT INTO agent_run_search_entries ({', '.join(COLUMNS)}) VALUES ({marks})"
        number = after * 1000
        for parts in texts:
            number += 1000
            rows = [entry_row(number + at, filled.project_id, run_id(1), text) for at, text in enumerate(parts)]
            with connection.transaction():
                connection.cursor().executemany(statement, rows)
        connection.execute("SELECT gin_clean_pending_list('search_entry_texts')")
        took_ms = (time.monotonic() - began) * 1000 / len(texts)
        grown = connection.execute(_SIZES).fetchone() or (0, 0)
    return grown[0] - before[0], grown[1] - before[1], took_ms
