"""Search for runs by a literal text in their titles and messages.

There is no index over texts, so a search reads them. One request therefore searches at most 500 runs and returns the
position where it stopped. Messages contain secrets, which are masked for readers. A run matches only if the text is in
the masked version; otherwise a secret could be guessed character by character.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from django.db import connection

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.queries.json_lists import Rows, RowSpan, Where
from runs.queries.run_columns import RUNS

#: Limits of one request: runs, and the steps of these runs. At least one run is searched completely.
MAX_RUNS = 500
MAX_STEPS = 5_000

# Searches only the texts of people, models and tools: no JSON keys and no base64 of images. The comparison ignores the
# case of A to Z only, on both databases, because that is what SQLite supports.
_MATCHING_TEXT = {
    "postgresql": """SELECT matches #>> '{}'
    FROM agent_run_messages m, jsonb_path_query(m.content, '$.parts[*].content[*]') AS matches
    WHERE m.run_id = r.id AND jsonb_typeof(matches) = 'string'
    AND strpos(lower((matches #>> '{}') COLLATE "C"), %s) > 0""",
    "sqlite": """SELECT matches.value
    FROM agent_run_messages m, JSON_TREE(m.content, '$.parts') AS matches
    WHERE m.run_id = r.id AND matches.type = 'text'
    AND (matches.fullkey GLOB '$.parts[[][0-9]*].content' OR matches.fullkey GLOB '$.parts[[][0-9]*].content[[][0-9]*]')
    AND INSTR(LOWER(matches.value), %s) > 0""",
}


def search_runs(text: str, where: Where, span: RowSpan) -> Rows:
    """Return the next runs of the list that contain `text`, ignoring the case of A to Z."""
    candidates = RUNS.keys(where, replace(span, limit=MAX_RUNS + 1), "r.step_count - r.step_base + 1")
    window, more = _window(candidates)
    if not window:
        return Rows([], [], RUNS.order)
    end = Rows([], window, RUNS.order).position_of(-1)
    # The same window, as a condition that starts from its end.
    within = RUNS.beyond(where, RowSpan(end, backward=not span.backward, inclusive=True))
    ids = _visible(_ascii_lower(text), within, span)
    if not ids:
        return replace(Rows([], [], RUNS.order), search_end=end if more else None)
    rows = RUNS.page(within.also(f"r.id IN ({', '.join(['%s'] * len(ids))})", *ids), span)
    return replace(rows, search_end=end if more else None)


def _visible(needle: str, where: Where, span: RowSpan) -> list[Any]:
    """Return the IDs of up to `span.limit` next runs that contain `needle` in their masked texts."""
    matches = _matching(needle, where)
    first = f"({_MATCHING_TEXT[connection.vendor]} LIMIT 1)"
    # The first parameter is for the selected subquery, which precedes the WHERE clause.
    matches = Where(matches.conditions, (needle, *matches.params))
    ids: list[Any] = []
    while len(ids) < span.limit:
        rows = RUNS.keys(matches, span, "r.id", "r.title", first)
        ids += [
            run
            for *_, run, title, text in rows
            if _matches_visibly(needle, title, text) or _any_message_matches(needle, run)
        ]
        if len(rows) < span.limit:
            break
        position = Rows([], [key[: len(RUNS.order)] for key in rows], RUNS.order).position_of(-1)
        span = replace(span, position=position, inclusive=False)
    return ids


def _any_message_matches(needle: str, run: Any) -> bool:
    """Return whether any message of the run contains `needle` after masking. Used if the first match was masked."""
    with connection.cursor() as cursor:
        sql = _MATCHING_TEXT[connection.vendor].replace("m.run_id = r.id", "m.run_id = %s")
        cursor.execute(sql, (run, needle))
        return any(_matches_visibly(needle, text) for (text,) in cursor)


def _matches_visibly(needle: str, *texts: str | None) -> bool:
    return any(needle in _ascii_lower(REDACTOR.clean_text(text)[0]) for text in texts if text)


def _window(candidates: Sequence[tuple[Any, ...]]) -> tuple[list[tuple[Any, ...]], bool]:
    """Return the keys of the runs to search, and whether more runs follow."""
    steps = accumulate(row[-1] for row in candidates)
    within = sum(1 for total in steps if total <= MAX_STEPS)
    count = min(max(within, 1), MAX_RUNS)
    return [row[:-1] for row in candidates[:count]], len(candidates) > count


def _matching(needle: str, where: Where) -> Where:
    matches = f"EXISTS ({_MATCHING_TEXT[connection.vendor]})"
    if connection.vendor == "postgresql":
        title = 'strpos(lower(r.title COLLATE "C"), %s) > 0'
    else:
        title = "INSTR(LOWER(r.title), %s) > 0"
    return where.also(f"({title} OR {matches})", needle, needle)


def _ascii_lower(text: str) -> str:
    """Return the text in lower case, for ASCII letters only, as both databases compare."""
    return text.encode(errors="surrogatepass").lower().decode(errors="surrogatepass")
