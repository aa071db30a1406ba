"""JSON as it leaves the site, in UTF-8."""

from __future__ import annotations

import json

import orjson


def encode(value: object) -> bytes:
    """Return a JSON value. Whole numbers may have any size: imported files, and arguments of calls, have such."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # a number beyond 64 bits
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
