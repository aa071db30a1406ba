"""Reads the search index: entries that contain all terms, from an ID on, newest or oldest first.

The index is read in windows of IDs, which grow as long as they are read quickly. So a search for a frequent text reads
little, and a search for a rare text takes few statements. A search that takes too long stops between two windows and
reports its position. PostgreSQL finds the candidates of a window by one GIN index over windows, filters and trigrams;
SQLite by a full-text table of trigrams (runs/migrations/0009_search_index.py). The condition on the text then selects
the matches.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection, transaction

from runs.queries.json_lists import Where
from runs.queries.searching.index_entries import MAX_PARTS

#: Letter of a window size in the index → the number of ID bits within a window.
WINDOWS = {"a": 12, "b": 15, "c": 18, "d": 21}
#: The small windows, which PostgreSQL may read by ID.
WALKED = ("a", "b")
#: If reading a window takes less than `FAST_S`, the next window is larger; if more than `SLOW_S`, it is smaller.
FAST_S, SLOW_S = 0.012, 0.05
#: Seconds after which a search stops. It always reads at least one window.
BUDGET_S = 0.4
#: Number of ID bits within a block. A block is skipped if no entry in it is in the searched period.
BLOCK = 12
#: Trigrams of all terms that SQLite looks up; more would hardly exclude further entries.
MAX_TRIGRAMS = 24
#: The text of an entry in lower case (`search_terms.fold`). Stored only if it differs from the lower case of A to Z.
_FOLDED = {
    # In the collation C, only A to Z have a lower case.
    "postgresql": 'COALESCE(e.folded, lower(e.text COLLATE "C") COLLATE "default")',
    "sqlite": "COALESCE(e.folded, LOWER(e.text))",
}
#: PostgreSQL makes trigrams of letters and digits only. With this letter instead of `_`, names are one word.
_LOW_LINE = "\ua000"
_INDEXED = f"replace({_FOLDED['postgresql']}, '_', '{_LOW_LINE}')"
#: The tags of an entry: its window of each size, project, kind, name, and whether it is an error.
_TAGS = """(ARRAY['a' || (e.id >> 12)::text, 'b' || (e.id >> 15)::text, 'c' || (e.id >> 18)::text,
    'd' || (e.id >> 21)::text, 'p' || e.project_id::text, 'k' || e.kind, 'n' || e.name, 'e' || e.is_error::text])"""
#: The name of PostgreSQL's index.
_INDEX = "search_entry_texts"
#: The columns of `IndexRow`.
_COLUMNS = """e.id, e.run_id, e.kind, e.key, e.seq, e.step, e.name, e.status, e.is_error, e.at, e.text,
    COALESCE(r.title, NULLIF(w.title, ''), w.slug, ''), COALESCE(r.status, f.status), {agent}, f.id"""
_AGENT = {"postgresql": "r.agent_config->>'agent_id'", "sqlite": "JSON_EXTRACT(r.agent_config, '$.agent_id')"}
#: Identifies the text that an entry is a part of. One expression, so that the planner does not use the index of runs.
_TEXT = {
    "postgresql": "e.run_id::text || split_part(replace(e.key, '-', ''), '.', 1)",
    "sqlite": "e.run_id || SUBSTR(REPLACE(e.key, '-', ''), 1, INSTR(REPLACE(e.key, '-', '') || '.', '.') - 1)",
}
_HAS_TRIGRAM = re.compile(r"[^\W_]{3}")
# An entry belongs to a run or to a flow run.
_OWNERS = """LEFT JOIN agent_runs r ON r.id = e.run_id LEFT JOIN flow_runs f ON f.id = e.run_id
    LEFT JOIN flows w ON w.id = f.flow_id"""
_ENTRIES = f"agent_run_search_entries e {_OWNERS}"
# CROSS JOIN keeps the order of the tables: SQLite then reads the candidates in the order of their IDs, and stops.
_CANDIDATES = f"agent_run_search_grams g CROSS JOIN agent_run_search_entries e ON e.id = g.rowid {_OWNERS}"


def has_trigrams() -> bool | None:
    """Return whether PostgreSQL's index has trigrams; None for another database, or without the index."""
    if connection.vendor != "postgresql":
        return None
    with connection.cursor() as cursor:
        cursor.execute("SELECT indexdef LIKE '%%gin_trgm_ops%%' FROM pg_indexes WHERE indexname = %s", [_INDEX])
        row = cursor.fetchone()
    return bool(row[0]) if row else None


def add_trigrams() -> None:
    """Rebuild PostgreSQL's index with trigrams. Raises `ProgrammingError` without the extension pg_trgm."""
    columns = [_TAGS, f"({_INDEXED}) gin_trgm_ops"]
    expressions = ", ".join(column.replace("e.", "") for column in columns)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"DROP INDEX {_INDEX}")
        cursor.execute(
            f"CREATE INDEX {_INDEX} ON agent_run_search_entries USING gin ({expressions})"
            " WITH (gin_pending_list_limit = 512)"
        )


class IndexRow(NamedTuple):
    """An entry of the index, with columns of its run or flow run. Values have the database's types."""

    id: int
    run_id: Any
    kind: str
    key: str
    seq: int
    step: int | None
    name: str
    status: str
    is_error: Any
    at: Any
    text: str
    #: The title of the run, or of the flow.
    title: str
    run_status: str
    agent: str | None
    flow_run_id: Any


@dataclass(frozen=True)
class SearchScope:
    """The scope of a search."""

    #: Conditions on `e` (entries), `r` (runs) and `f` (flow runs).
    where: Where
    #: The tags of the searched entries in PostgreSQL's index.
    tags: tuple[str, ...] = ()
    #: The conditions on the project and the time of an entry, if times are filtered.
    in_time: Where | None = None
    #: Set if only one run is searched.
    run_id: UUID | None = None


@dataclass(frozen=True)
class Matches:
    """The rows of a search. `stopped_at` is the next ID to read if the search stopped early."""

    rows: list[IndexRow]
    stopped_at: int | None = None


def newest_id() -> int:
    """Return the highest ID of an entry, or 0."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT COALESCE(MAX(id), 0) FROM agent_run_search_entries")
        return int(cursor.fetchone()[0])


def find(terms: Sequence[str], scope: SearchScope, begin: int, limit: int, *, upward: bool = False) -> Matches:
    """Return up to `limit` entries that contain all terms, from the ID `begin` (included) downward, or upward."""
    if scope.run_id is not None:
        return Matches(_read(terms, scope, (begin, None) if upward else (None, begin), limit, upward=upward))
    rows: list[IndexRow] = []
    started = time.monotonic()
    for window in _IdWindows(begin, newest_id(), scope.in_time, upward=upward):
        rows += _read(terms, scope, window.span, limit - len(rows), upward=upward, tag=window.tag)
        if len(rows) >= limit:
            return Matches(rows)
        if time.monotonic() - started > BUDGET_S and window.next_id is not None:
            return Matches(rows, stopped_at=window.next_id)
    return Matches(rows)


@dataclass(frozen=True)
class _IdWindow:
    """An aligned range of IDs: its tag in PostgreSQL's index, the part to search, and where the next window begins."""

    tag: str
    span: tuple[int, int]
    next_id: int | None
    #: The share of the range that is searched, from 0 to 1. The first window mostly starts within its range.
    share: float


class _IdWindows:
    """The windows from an ID to the end of the index. Iterate once: their size depends on the time between windows."""

    def __init__(self, begin: int, newest: int, in_time: Where | None, *, upward: bool) -> None:
        self._next: int | None = begin if upward else min(begin, newest)
        self._newest, self._in_time, self._upward = newest, in_time, upward

    def __iter__(self) -> Iterator[_IdWindow]:
        letters, level = list(WINDOWS), 0
        while self._next is not None and 1 <= self._next <= self._newest:
            began = time.monotonic()
            if self._in_time is not None and not self._skip(self._in_time):
                return
            window = self._take(letters[level])
            yield window
            took = time.monotonic() - began
            if took < FAST_S * window.share:
                level = min(level + 1, len(letters) - 1)
            elif took > SLOW_S:
                level = max(level - 1, 0)

    def _skip(self, in_time: Where) -> bool:
        """Skip to the next block with an entry in the period. Return False if no block is left."""
        first, last = (self._next or 0) >> BLOCK, self._newest >> BLOCK if self._upward else 0
        step = "+ 1" if self._upward else "- 1"
        conditions = " AND ".join(in_time.conditions)
        # Not EXISTS, which PostgreSQL could turn into a join with all entries. `+ 0` makes SQLite use its index.
        statement = f"""WITH RECURSIVE b (block) AS (
                SELECT CAST(%s AS bigint) UNION ALL SELECT block {step} FROM b WHERE block <> %s
            ) SELECT block FROM b WHERE (
                SELECT 1 FROM agent_run_search_entries e WHERE (e.id >> {BLOCK}) = block + 0 AND {conditions} LIMIT 1
            ) IS NOT NULL LIMIT 1"""  # noqa: S608 - constants only
        with connection.cursor() as cursor:
            cursor.execute(statement, [first, last, *in_time.params])
            row = cursor.fetchone()
        if row and row[0] != first:
            self._next = row[0] << BLOCK if self._upward else ((row[0] + 1) << BLOCK) - 1
        return row is not None

    def _take(self, letter: str) -> _IdWindow:
        """Return the next window of a size, and move on to the following one."""
        begin, bits = self._next or 0, WINDOWS[letter]
        number = begin >> bits
        low, high = number << bits, ((number + 1) << bits) - 1
        following = high + 1 if self._upward else low - 1
        self._next = following if 1 <= following <= self._newest else None
        span = (begin, high) if self._upward else (low, begin)
        return _IdWindow(f"{letter}{number}", span, self._next, share=(span[1] - span[0] + 1) / (1 << bits))


def _read(
    terms: Sequence[str],
    scope: SearchScope,
    span: tuple[int | None, int | None],
    limit: int,
    *,
    upward: bool,
    tag: str = "",
) -> list[IndexRow]:
    """Return the matching entries within a span of IDs, both ends included. `tag`: that of the window."""
    low, high = span
    where, tables, id_column = scope.where, _ENTRIES, "e.id"
    if connection.vendor == "postgresql":
        # Without trigrams and filters, read small windows by ID: often the first texts are enough.
        is_walked = tag[:1] in WALKED and len(scope.tags) == 1 and not any(map(_has_trigram, terms))
        by_tags = bool(tag) and not is_walked
        # Not e.id: the planner could scan the primary key instead, which is as long as the window.
        id_column = "e.id + 0" if by_tags else id_column
        if by_tags:
            where = where.also(f"{_TAGS} @> %s::text[]", [tag, *scope.tags])
    elif tag and (trigrams := _trigrams(terms)):
        tables, id_column = _CANDIDATES, "g.rowid"
        where = where.also("agent_run_search_grams MATCH %s", trigrams)
    if low is not None:
        where = where.also(f"{id_column} >= %s", low)
    if high is not None:
        where = where.also(f"{id_column} <= %s", high)
    for term in terms:
        where = where.also(*_contains(term))
    where = where.also(*_first_part(terms))
    order = "e.id" if id_column == "e.id + 0" else id_column
    return _fetch(tables, where, f"ORDER BY {order} {'ASC' if upward else 'DESC'} LIMIT {int(limit)}")


def _contains(term: str) -> tuple[str, ...]:
    """Return the condition that a text contains the term, with its parameters."""
    if connection.vendor == "sqlite":
        return f"INSTR({_FOLDED['sqlite']}, %s) > 0", term
    condition = f"strpos({_FOLDED['postgresql']}, %s) > 0"
    if not _has_trigram(term):
        return condition, term
    indexed = term.replace("_", _LOW_LINE)
    pattern = indexed.replace("\\", "\\\\").replace("%", "\\%")
    # The index supports LIKE with trigrams. Without a trigram, PostgreSQL would read the whole table for LIKE.
    like, like_param = f"{_INDEXED} LIKE %s", f"%{pattern}%"
    if _LOW_LINE not in indexed:
        return like, like_param
    # The text itself may contain the letter that replaces `_`.
    return f"{like} AND {condition}", like_param, term


def _first_part(terms: Sequence[str]) -> tuple[str, ...]:
    """Return the condition that no earlier part of the same text contains the terms, with its parameters."""
    vendor = connection.vendor
    find, text, folded = "strpos" if vendor == "postgresql" else "INSTR", _TEXT[vendor], _FOLDED[vendor]
    contains = "".join(f" AND {find}({folded}, %s) > 0".replace("e.", "o.") for _ in terms)
    condition = f"""({find}(e.key, '.') = 0 OR NOT EXISTS (
        SELECT 1 FROM agent_run_search_entries o WHERE o.id > e.id AND o.id < e.id + {MAX_PARTS}
        AND o.kind = e.kind AND {text.replace("e.", "o.")} = {text}{contains}
    ))"""  # noqa: S608 - constants only
    return condition, *terms


def _has_trigram(term: str) -> bool:
    """Return whether PostgreSQL can look up the term, which needs three adjacent letters or digits."""
    return _HAS_TRIGRAM.search(term.replace("_", _LOW_LINE)) is not None


def _trigrams(terms: Sequence[str]) -> str:
    """Return the full-text query for entries with the trigrams of the terms. Empty if all terms are shorter."""
    by_term = [[term[at : at + 3] for at in range(len(term) - 2)] for term in terms]
    # Those without overlap come first, because they exclude the most entries.
    spread = [[grams[at] for first in range(3) for at in range(first, len(grams), 3)] for grams in by_term]
    share = max(MAX_TRIGRAMS // max(len(terms), 1), 1)
    chosen = dict.fromkeys(gram for grams in spread for gram in grams[:share])
    return " AND ".join('"{}"'.format(gram.replace('"', '""')) for gram in chosen)


def _fetch(tables: str, where: Where, rest: str) -> list[IndexRow]:
    columns = _COLUMNS.format(agent=_AGENT[connection.vendor])
    conditions = " AND ".join(where.conditions) or "TRUE"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {columns} FROM {tables} WHERE {conditions} {rest}", where.params)  # noqa: S608 - constants only
        return [IndexRow(*row) for row in cursor.fetchall()]
