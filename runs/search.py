"""Runs by what was said in them: a literal search over titles and messages, a bounded part of the runs at a time.

May import Django, the listings and rows_json. Without an index over texts a search reads them; so one answer looks at
the next few hundred runs of the list only, says what it found there and how far it came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from django.db import connection

from runs.listings import RUNS
from runs.rows_json import Rows, Span, Where

#: What one answer looks through at most: runs, and steps of them (but always a whole run). A step has a few messages.
MAX_RUNS = 500
MAX_STEPS = 5_000

# Only what people, models and tools said: not the names of JSON's members, and no base64 of an image. In the letters'
# comparison A is a, as in SQLite; of other alphabets each letter is only itself, on both databases.
_SAID_POSTGRES = """EXISTS (
    SELECT 1 FROM agent_run_messages m, jsonb_path_query(m.content, '$.parts[*].content[*]') AS said
    WHERE m.run_id = r.id AND jsonb_typeof(said) = 'string'
    AND strpos(lower((said #>> '{}') COLLATE "C"), %s) > 0
)"""
_SAID_SQLITE = """EXISTS (
    SELECT 1 FROM agent_run_messages m, JSON_TREE(m.content, '$.parts') AS said
    WHERE m.run_id = r.id AND said.type = 'text'
    AND (said.fullkey GLOB '$.parts[[][0-9]*].content' OR said.fullkey GLOB '$.parts[[][0-9]*].content[[][0-9]*]')
    AND INSTR(LOWER(said.value), %s) > 0
)"""


def runs_saying(text: str, where: Where, span: Span) -> Rows:
    """The next runs of the list in which `text` was said, without regard to the case of A to Z. Two statements."""
    looked_at = RUNS.keys(where, replace(span, limit=MAX_RUNS + 1), "r.step_count - r.step_base + 1")
    window, more = _window(looked_at)
    if not window:
        return Rows([], [], RUNS.order)
    end = Rows([], window, RUNS.order).place(-1)
    # The window again, seen from its end.
    up_to = RUNS.beyond(where, Span(end, backward=not span.backward, inclusive=True))
    found = RUNS.page(_said(text, up_to), span)
    return replace(found, reached=end if more else None)


def _window(looked_at: Sequence[tuple[Any, ...]]) -> tuple[list[tuple[Any, ...]], bool]:
    """The keys of the runs that are looked through, and whether others follow."""
    steps = accumulate(row[-1] for row in looked_at)
    within = sum(1 for total in steps if total <= MAX_STEPS)
    count = min(max(within, 1), MAX_RUNS)
    return [row[:-1] for row in looked_at[:count]], len(looked_at) > count


def _said(text: str, where: Where) -> Where:
    low = "".join(letter.lower() if letter.isascii() else letter for letter in text)
    if connection.vendor == "postgresql":
        said, title = _SAID_POSTGRES, 'strpos(lower(r.title COLLATE "C"), %s) > 0'
    else:
        said, title = _SAID_SQLITE, "INSTR(LOWER(r.title), %s) > 0"
    return where.also(f"({title} OR {said})", low, low)
