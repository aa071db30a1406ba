"""Secrets leave by no door: what rows hold raw is masked where it becomes JSON for a reader.

What a model said stays in its row as it came, because it is sent back to the model. Rows of an earlier version may
hold what only the detectors of a later one know.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from runs import environment
from runs.queries.json_columns import dumped
from timeline.outgoing import suspects
from timeline.redaction.redact import DEFAULT as REDACTOR
from timeline.redaction.redact import Redactor


def masked(text: str) -> str:
    """Return the JSON object of a row without secrets: the same text where it has none."""
    value = json.loads(text)
    cleaned, _ = REDACTOR.clean(value)
    return text if cleaned is value else dumped(cleaned)


def masked_rows(texts: Sequence[str]) -> list[str]:
    """Return a page of a list without secrets. One search through all its rows tells which need a closer look."""
    rows = list(texts)
    # What stands before a secret decides whether it is one, and an escape ends in a letter or a digit.
    if "\\u" in "".join(rows):
        rows = [dumped(json.loads(text)) for text in rows]
    for place in suspects(rows):
        rows[place] = masked(rows[place])
    return rows


def without_own_secrets(said: Any) -> Any:
    """Return what a vendor said, a text or a JSON value, without the secrets of this process's environment: vendors
    repeat the key that they refuse, and a key of a gateway's has no shape to be known by."""
    return _knows(environment.secret_values()).clean(said)[0]


@cache
def _knows(secrets: frozenset[str]) -> Redactor:
    return Redactor(secrets)
