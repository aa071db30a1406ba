"""The number of tool calls that an agent runs at the same time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Calls of one run that run at the same time. `parallel_tools` in an agent's settings overrides it.
DEFAULT_PARALLEL = 8
MAX_PARALLEL = 64


class InvalidParallel(ValueError):
    """`parallel_tools` of an agent's settings is invalid."""


def parallel_limit(settings: Mapping[str, Any]) -> int:
    """Return how many calls of an agent run at the same time; 1 means sequentially. Raises `InvalidParallel`."""
    value = settings.get("parallel_tools", DEFAULT_PARALLEL)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_PARALLEL:
        allowed = f"a whole number from 1 to {MAX_PARALLEL}"
        raise InvalidParallel(f"settings.parallel_tools must be {allowed}, not {str(value)[:64]!r}")
    return value
