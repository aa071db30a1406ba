"""Diffs of two definitions of an agent, field by field, with secrets masked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentops.base.redaction.masked_secrets import masked
from runs.agents import placement
from runs.pages.compare.differences import TextDifference, difference
from runs.providers.messages import canonical
from timeline.display import clip

FIELDS = ("provider", "model", "max_steps", "instructions", "tools", "settings", "policies", *placement.FIELDS)
MAX_BYTES = 128 * 1024


def changes_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[TextDifference]:
    """Return the diff of each field that differs."""
    old, new = masked(dict(before)), masked(dict(after))
    return [
        difference(name, _text(old.get(name)), _text(new.get(name)))
        for name in FIELDS
        if canonical(before.get(name)) != canonical(after.get(name))
    ]


def _text(value: Any) -> str:
    if value in (None, "", [], {}):
        return ""
    # Sorted, because PostgreSQL stores keys in another order than forms send them.
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)
    return clip(text, MAX_BYTES).text
