"""Generates the entries of a search index of any size, and the searches that are measured on it.

The texts are sentences of the recordings that the product ships, shuffled, so that words are as frequent as in runs.
Import it after Django is set up.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

#: Entries per run.
PER_RUN = 50
#: Sentences per text, in turn: short messages, long outputs.
SENTENCES = (1, 1, 3, 6)
COLUMNS = ("id", "project_id", "run_id", "kind", "key", "seq", "step", "name", "status", "is_error", "at", "text")
TOOLS = ("Read", "Grep", "Edit", "Bash", "WebFetch")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SEARCH = "/api/projects/bench/search"


def entries(count: int, project: object, run_ids: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of `count` entries, by COLUMNS. `run_ids(n)` is the ID of run n, from 1."""
    source = random.Random(7)
    sentences = _sentences()
    for number in range(1, count + 1):
        is_call = number % 4 == 3
        words = " ".join(source.choices(sentences, k=SENTENCES[number % 4]))
        if number % 1000 == 500:
            words = f"{words} quota at 100 % of max_tokens_per_day"
        text = f"{words} {own_word(number)}"
        yield (
            number,
            project,
            run_ids((number - 1) // PER_RUN + 1),
            "tool_call" if is_call else "message",
            f"00000000-0000-7000-8000-{number:012x}",
            (number - 1) % PER_RUN + 1,
            (number - 1) % PER_RUN // 4,
            TOOLS[number % len(TOOLS)] if is_call else "assistant",
            "completed" if is_call else "",
            number % 100 == 3,
            BEGIN + timedelta(seconds=number),
            text,
        )


def run_id(number: int) -> UUID:
    """Return the ID of a run of bench.list_rows, counted from 1."""
    return UUID(f"{number:012x}70008000{number:012x}")


def own_word(number: int) -> str:
    """Return a word that no other entry has, like an identifier in a text."""
    return f"{number * 2654435761 % 2**32:08x}"


def _sentences() -> list[str]:
    """Return the sentences of the product's recordings, as they are indexed."""
    from runs.fixtures.fixture_files import SHIPPED
    from runs.upkeep.search_texts import masked

    recorded = "".join(path.read_text() for path in sorted(SHIPPED.glob("claude-code-*.json")))
    found = {masked(text) for text in re.findall(r"[A-Za-z][^\"\\\\]{30,160}", recorded)}
    return sorted(text for text in found if text)


def searches(count: int) -> dict[str, str]:
    """Return the URLs to request, by what they search for."""
    queries: dict[str, dict[str, object]] = {
        "a frequent word": {"q": "file"},
        "a frequent word, newest first": {"q": "file", "order": "newest", "limit": 50},
        "a word that is in one old text": {"q": own_word(7)},
        "a part of words": {"q": "ead_fil"},
        "three words": {"q": "error file version"},
        "a phrase": {"q": '"in the"'},
        "% and _ literally": {"q": "100 % max_tokens"},
        "nothing": {"q": "zxqjvwkzz"},
        "frequent parts that are not in one text": {"q": '"file error the test"'},
        "two letters": {"q": "ok"},
        "a letter of no text": {"q": "é"},
        "a call of a tool": {"q": "test", "tool_name": "Bash", "order": "newest"},
        "failures": {"q": "test", "only": "errors", "order": "newest"},
        "a status": {"q": "test", "status": "failed", "order": "newest"},
        "an older time": {
            "q": "file",
            "order": "newest",
            "before": (BEGIN + timedelta(seconds=count // 2)).isoformat(),
        },
    }
    return {name: f"{SEARCH}?{urlencode(query)}" for name, query in queries.items()}
