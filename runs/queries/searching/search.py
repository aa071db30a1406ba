"""Search for runs by a literal text in their titles and messages.

The search reads the texts, without an index. One request therefore searches at most `MAX_RUNS` runs, and returns the
position where it stopped. A run matches only if its masked texts contain the text: otherwise a secret could be guessed
character by character.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from django.db import connection

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.queries.json_lists import Rows, RowSpan, Where, position_of
from runs.queries.run_columns import RUNS

#: Maximum runs that one request searches.
MAX_RUNS = 500
#: Maximum steps of these runs. At least one run is searched completely.
MAX_STEPS = 5_000

# The texts of a run `r` that contain the parameter. Only texts of people, models and tools are searched: no JSON keys
# and no base64 of images. The comparison ignores the case of A to Z only, because SQLite supports no more.
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
    """Return the next runs of the list whose title or messages contain `text`, ignoring the case of A to Z."""
    candidates = RUNS.keys(where, replace(span, limit=MAX_RUNS + 1), "r.step_count - r.step_base + 1")
    window, has_more = _window(candidates)
    if not window:
        return Rows([], [], RUNS.order)
    end = position_of(RUNS.order, window[-1])
    # The runs up to the end of the window: those beyond its end, seen in the other direction.
    within = RUNS.beyond(where, RowSpan(end, backward=not span.backward, inclusive=True))
    ids = _visible(_ascii_lower(text), within, span)
    rows = Rows([], [], RUNS.order)
    if ids:
        rows = RUNS.page(within.also(f"r.id IN ({', '.join(['%s'] * len(ids))})", *ids), span)
    return replace(rows, search_end=end if has_more else None)


def _visible(needle: str, where: Where, span: RowSpan) -> list[Any]:
    """Return the IDs of up to `span.limit` next runs that contain `needle` in their masked texts."""
    matches = _matching(needle, where)
    first = f"({_MATCHING_TEXT[connection.vendor]} LIMIT 1)"
    # Another parameter comes first, for the selected subquery, which precedes the WHERE clause.
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
        position = position_of(RUNS.order, rows[-1][: len(RUNS.order)])
        span = replace(span, position=position, inclusive=False)
    return ids


def _any_message_matches(needle: str, run: Any) -> bool:
    """Return whether any masked message of the run contains `needle`. Needed if the first match is in a secret."""
    with connection.cursor() as cursor:
        sql = _MATCHING_TEXT[connection.vendor].replace("m.run_id = r.id", "m.run_id = %s")
        cursor.execute(sql, (run, needle))
        return any(_matches_visibly(needle, text) for (text,) in cursor)


def _matches_visibly(needle: str, *texts: str | None) -> bool:
    return any(needle in _ascii_lower(REDACTOR.clean_text(text)[0]) for text in texts if text)


def _window(candidates: Sequence[tuple[Any, ...]]) -> tuple[list[tuple[Any, ...]], bool]:
    """Return the keys of the runs that one request searches, and whether more runs follow."""
    steps = accumulate(row[-1] for row in candidates)
    within = sum(1 for total in steps if total <= MAX_STEPS)
    count = min(max(within, 1), MAX_RUNS)
    return [row[:-1] for row in candidates[:count]], len(candidates) > count


def _matching(needle: str, where: Where) -> Where:
    """Return `where` and the condition that the stored title or a stored message contains `needle`."""
    matches = f"EXISTS ({_MATCHING_TEXT[connection.vendor]})"
    if connection.vendor == "postgresql":
        title = 'strpos(lower(r.title COLLATE "C"), %s) > 0'
    else:
        title = "INSTR(LOWER(r.title), %s) > 0"
    return where.also(f"({title} OR {matches})", needle, needle)


def _ascii_lower(text: str) -> str:
    """Return the text in lower case, for ASCII letters only, as both databases compare."""
    return text.encode(errors="surrogatepass").lower().decode(errors="surrogatepass")
