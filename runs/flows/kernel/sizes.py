"""The size of JSON values, measured without writing them."""

from __future__ import annotations

from pydantic import JsonValue


def is_larger(value: JsonValue, limit: int) -> bool:
    """Return whether a value has more than about `limit` bytes as JSON.

    Stops at the limit: a value may refer to the same list so often that writing it would never end.
    """
    size, waiting = 0, [value]
    while waiting:
        current = waiting.pop()
        size += 2 + (len(current) if isinstance(current, str) else 0)
        if size > limit:
            return True
        if isinstance(current, dict):
            size += sum(len(name) + 4 for name in current)
            waiting += current.values()
        elif isinstance(current, list):
            waiting += current
    return False
