"""Reads the options of the built-in guards."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from agentops.base.limits.patterns import Pattern
from agentops.base.limits.work_budget import WorkBudget

MAX_ITEMS = 200


def refuse_unknown(options: Mapping[str, Any], *known: str) -> None:
    """Raise ValueError for an unknown option."""
    for name in options:
        if name not in known:
            raise ValueError(f"unknown option {str(name)[:64]!r}; use one of: {', '.join(known)}")


def texts(options: Mapping[str, Any], name: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return a list of texts."""
    value = options.get(name, list(default))
    if not isinstance(value, list) or len(value) > MAX_ITEMS or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{name} must be a list of at most {MAX_ITEMS} texts")
    return tuple(value)


def patterns(options: Mapping[str, Any], name: str) -> tuple[Pattern, ...]:
    """Return a list of patterns."""
    return tuple(Pattern(text) for text in texts(options, name))


def is_denied(denied: tuple[Pattern, ...], text: str, budget: WorkBudget) -> bool:
    """Return whether a denied pattern occurs in a text. Raises `WorkExceeded`, which makes the guard fail and deny."""
    return any(pattern.occurs_in(text, budget) for pattern in denied)


def dollars(options: Mapping[str, Any], name: str) -> Decimal | None:
    """Return an amount in US dollars, or None if the option is missing."""
    value = options.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1_000_000:
        raise ValueError(f"{name} must be a number of US dollars above 0")
    return Decimal(str(value))
