"""The values of Django's cache in Redis: integers and JSON."""

from __future__ import annotations

import json
from typing import Any


class JsonSerializer:
    """Replaces Django's serializer, which unpickles what it reads: who can write to Redis could run code here."""

    def dumps(self, value: Any) -> int | str:
        """Return an integer unchanged, so that Redis can count with it, and anything else as JSON."""
        return value if type(value) is int else json.dumps(value)

    def loads(self, data: bytes) -> Any:
        """Return a stored value, or None where it is none that `dumps` has written."""
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            return None
