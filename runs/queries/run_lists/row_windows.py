"""The run-list filters without an index, for lists whose rows the database writes as JSON.

They are tested on the next WINDOW runs only, so that the time for a page is bounded (see run_windows).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

from django.db import connection

from runs.queries.json_lists import Rows, RowSpan, Where
from runs.queries.run_columns import DURATION, RUNS
from runs.queries.run_lists import run_windows
from runs.queries.run_lists.run_filters import Filters

#: Reads the rows of a range that meet conditions.
Read = Callable[[Where, RowSpan], Rows]


def unindexed_conditions(filters: Filters) -> Where:
    """Return the conditions of the filters by place in a tree, reason, cost and duration."""
    where = Where()
    if filters.root_only:
        where = where.also("r.parent_run_id IS NULL AND r.root_run_id = r.id")
    if filters.reason:
        condition = "(UPPER(r.status_reason) = UPPER(%s) OR UPPER(r.error_type) = UPPER(%s))"
        where = where.also(condition, filters.reason, filters.reason)
    for sign, cost, seconds in (
        (">=", filters.cost_min, filters.duration_min),
        ("<=", filters.cost_max, filters.duration_max),
    ):
        if cost:
            where = where.also(f"r.cost_usd {sign} %s", _money(cost))
        if seconds:
            where = _with_duration(where, sign, int(seconds))
    return where


def read_window(read: Read, where: Where, conditions: Where, span: RowSpan) -> Rows:
    """Return the rows that meet `conditions` among the next WINDOW runs that meet `where`. One more statement.

    If more runs follow, the result has the position where the search stopped.
    """
    end = RUNS.position_at(where, span, run_windows.WINDOW)
    if end is not None:
        where = RUNS.beyond(where, RowSpan(end, backward=not span.backward, inclusive=True))
    rows = read(where.also(" AND ".join(conditions.conditions), *conditions.params), span)
    is_done = len(rows) >= span.limit or rows.search_end is not None
    return rows if is_done else replace(rows, search_end=end)


def _money(text: str) -> object:
    return connection.ops.adapt_decimalfield_value(Decimal(text), max_digits=None, decimal_places=8)


def _with_duration(where: Where, sign: str, seconds: int) -> Where:
    if connection.vendor == "postgresql":
        return where.also(f"{DURATION.sql} {sign} %s", seconds)
    return where.also(f"{DURATION.sqlite} {sign} %s", seconds * 1_000_000)
