"""Durations in definitions, such as "60s"."""

from __future__ import annotations

import re

SECONDS_OF = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "": 1.0}
DURATION = re.compile(r"\s*(?P<number>[0-9]{1,12}(?:\.[0-9]{1,6})?)\s*(?P<unit>[a-z]*)\s*", re.ASCII)


def seconds_of(value: object) -> float:
    """Parse a duration, such as "500ms", "60s", "5m", "2h", "1d" or a number of seconds. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("a duration must be a text such as 60s or 5m, or a number of seconds")
    match = DURATION.fullmatch(value if isinstance(value, str) else str(value))
    unit = match["unit"] if match else ""
    if match is None or unit not in SECONDS_OF:
        raise ValueError(f"{str(value)[:64]!r} is not a duration; write it as 500ms, 60s, 5m, 2h or 1d")
    return float(match["number"]) * SECONDS_OF[unit]
