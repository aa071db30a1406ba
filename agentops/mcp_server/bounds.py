"""Limits on the size of tool results: a model reads them whole, so long texts are truncated, with a note."""

from __future__ import annotations

import json
from typing import Any

#: Maximum characters of a result as JSON.
MAX_RESULT = 50_000
#: Maximum characters of a text in a result, tried in this order until the result is short enough.
_LENGTHS = (20_000, 5_000, 1_000, 200, 50)


def bounded(value: Any) -> str:
    """Return the value as JSON of at most MAX_RESULT characters; texts are truncated if it is longer."""
    text = _dumps(value)
    for length in _LENGTHS:
        if len(text) <= MAX_RESULT:
            return text
        text = _dumps(cut(value, length))
    return text if len(text) <= MAX_RESULT else _dumps({"cut": True, "beginning": text[: MAX_RESULT // 2]})


def cut(value: Any, length: int) -> Any:
    """Return a JSON value with its longer texts truncated, including a note of the omitted length."""
    if isinstance(value, str) and len(value) > length:
        return f"{value[:length]}… [{len(value) - length} more characters]"
    if isinstance(value, list):
        return [cut(item, length) for item in value]
    if isinstance(value, dict):
        return {name: cut(item, length) for name, item in value.items()}
    return value


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
