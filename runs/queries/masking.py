"""Masking of secrets in rows that are returned to readers as JSON.

Messages are stored unmasked, because they are sent back to the model. Other rows may have been written by a version
with fewer secret detectors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.queries.json_columns import to_json
from timeline.outgoing import indexes_with_secrets


def mask(text: str) -> str:
    """Return the JSON object of a row with its secrets masked. Without secrets, the same text is returned."""
    value = json.loads(text)
    cleaned, _ = REDACTOR.clean(value)
    return text if cleaned is value else to_json(cleaned)


def mask_rows(texts: Sequence[str]) -> list[str]:
    """Return the rows of a page with their secrets masked. One search over all rows finds those to inspect."""
    rows = list(texts)
    # The character before a secret decides whether it is a secret, and an escape ends in a letter or a digit.
    if "\\u" in "".join(rows):
        rows = [to_json(json.loads(text)) for text in rows]
    for index in indexes_with_secrets(rows):
        rows[index] = mask(rows[index])
    return rows
