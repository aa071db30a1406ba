"""Secrets leave by no door: what rows hold raw is masked where it becomes JSON for a reader.

May import the record's redactor and search, and json_columns. What a model said stays in its row as it came, because
it is sent back to the model. Rows of an earlier version may hold what only the detectors of a later one know.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal

from runs.json_columns import dumped, jsonb
from timeline.outgoing import suspects
from timeline.redact import DEFAULT as REDACTOR


def masked(text: str) -> str:
    """Return the JSON object of a row without secrets: the same text where it has none."""
    value = json.loads(text, parse_float=Decimal)
    cleaned, _ = REDACTOR.clean(value)
    if cleaned is value or not isinstance(cleaned, dict):
        return text
    # In the row's own order, and its values as the database writes them.
    return "{" + ",".join(f"{dumped(name)}:{jsonb(member)}" for name, member in cleaned.items()) + "}"


def masked_rows(texts: Sequence[str]) -> list[str]:
    """Return a page of a list without secrets. One search through all its rows tells which need a closer look."""
    rows = list(texts)
    for place in suspects(rows):
        rows[place] = masked(rows[place])
    return rows
