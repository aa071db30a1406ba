"""A JSON Schema of 5 KB, and inputs of 100 KB, whose check takes minutes if nothing limits it."""

from __future__ import annotations

from typing import Any

#: Six million branches: each item is compared with each constant, and only the last one is equal.
EXPENSIVE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"items": {"type": "array", "items": {"anyOf": [{"const": number} for number in range(299)]}}},
}
EXPENSIVE_INPUTS: dict[str, Any] = {"items": [298] * 20_000}
