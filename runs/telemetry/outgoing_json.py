"""Encode outgoing JSON as UTF-8."""

from __future__ import annotations

import json

import orjson


def encode(value: object) -> bytes:
    """Return a value as JSON. Integers may have any size, because imported files and arguments of calls may contain
    such numbers.
    """
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # an integer beyond 64 bits
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
