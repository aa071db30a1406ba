"""Runs by what was said in them: a literal search over titles and messages, a bounded part of the runs at a time.

Without an index over texts a search reads them;
so one answer looks at the next few hundred runs of the list only, says what it found there and how far it came. Rows
hold secrets for the model that readers are shown masked: a run counts only if what was searched for is in what a
reader may see, or a secret could be guessed letter by letter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from django.db import connection

from runs.queries.json_lists import Rows, RowSpan, Where
from runs.queries.run_columns import RUNS
from timeline.redaction.redact import DEFAULT as REDACTOR

#: What one answer looks through at most: runs, and steps of them (but always a whole run). A step has a few messages.
MAX_RUNS = 500
MAX_STEPS = 5_000

# Only what people, models and tools said: not the names of JSON's members, and no base64 of an image. In the letters'
# comparison A is a, as in SQLite; of other alphabets each letter is only itself, on both databases.
_SAID = {
    "postgresql": """SELECT said #>> '{}'
    FROM agent_run_messages m, jsonb_path_query(m.content, '$.parts[*].content[*]') AS said
    WHERE m.run_id = r.id AND jsonb_typeof(said) = 'string'
    AND strpos(lower((said #>> '{}') COLLATE "C"), %s) > 0""",
    "sqlite": """SELECT said.value
    FROM agent_run_messages m, JSON_TREE(m.content, '$.parts') AS said
    WHERE m.run_id = r.id AND said.type = 'text'
    AND (said.fullkey GLOB '$.parts[[][0-9]*].content' OR said.fullkey GLOB '$.parts[[][0-9]*].content[[][0-9]*]')
    AND INSTR(LOWER(said.value), %s) > 0""",
}


def runs_saying(text: str, where: Where, span: RowSpan) -> Rows:
    """The next runs of the list in which `text` was said, without regard to the case of A to Z."""
    looked_at = RUNS.keys(where, replace(span, limit=MAX_RUNS + 1), "r.step_count - r.step_base + 1")
    window, more = _window(looked_at)
    if not window:
        return Rows([], [], RUNS.order)
    end = Rows([], window, RUNS.order).place(-1)
    # The window again, seen from its end.
    up_to = RUNS.beyond(where, RowSpan(end, backward=not span.backward, inclusive=True))
    ids = _visible(_lowered(text), up_to, span)
    if not ids:
        return replace(Rows([], [], RUNS.order), reached=end if more else None)
    found = RUNS.page(up_to.also(f"r.id IN ({', '.join(['%s'] * len(ids))})", *ids), span)
    return replace(found, reached=end if more else None)


def _visible(low: str, where: Where, span: RowSpan) -> list[Any]:
    """The ids of the next runs, as many as are asked for, in which `low` is in what readers are shown."""
    said = _said(low, where)
    first = f"({_SAID[connection.vendor]} LIMIT 1)"
    # The text stands in what is selected too, which comes first.
    said = Where(said.conditions, (low, *said.params))
    ids: list[Any] = []
    while len(ids) < span.limit:
        found = RUNS.keys(said, span, "r.id", "r.title", first)
        ids += [run for *_, run, title, text in found if _shows(low, title, text) or _says(low, run)]
        if len(found) < span.limit:
            break
        place = Rows([], [key[: len(RUNS.order)] for key in found], RUNS.order).place(-1)
        span = replace(span, place=place, inclusive=False)
    return ids


def _says(low: str, run: Any) -> bool:
    """Whether any message of the run shows it: its first text that has it does not."""
    with connection.cursor() as cursor:
        sql = _SAID[connection.vendor].replace("m.run_id = r.id", "m.run_id = %s")
        cursor.execute(sql, (run, low))
        return any(_shows(low, text) for (text,) in cursor)


def _shows(low: str, *texts: str | None) -> bool:
    return any(low in _lowered(REDACTOR.clean_text(text)[0]) for text in texts if text)


def _window(looked_at: Sequence[tuple[Any, ...]]) -> tuple[list[tuple[Any, ...]], bool]:
    """The keys of the runs that are looked through, and whether others follow."""
    steps = accumulate(row[-1] for row in looked_at)
    within = sum(1 for total in steps if total <= MAX_STEPS)
    count = min(max(within, 1), MAX_RUNS)
    return [row[:-1] for row in looked_at[:count]], len(looked_at) > count


def _said(low: str, where: Where) -> Where:
    said = f"EXISTS ({_SAID[connection.vendor]})"
    if connection.vendor == "postgresql":
        title = 'strpos(lower(r.title COLLATE "C"), %s) > 0'
    else:
        title = "INSTR(LOWER(r.title), %s) > 0"
    return where.also(f"({title} OR {said})", low, low)


def _lowered(text: str) -> str:
    """In small letters, of the ASCII ones only: as both databases compare."""
    return text.encode(errors="surrogatepass").lower().decode(errors="surrogatepass")
