"""Retry limits: how often and how fast a failed call is repeated, as the site and the agent's settings say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings as site

MAX_RETRIES = 100
MAX_BASE_DELAY_MS = 3_600_000


class InvalidRetryLimit(ValueError):
    """An agent's settings name a retry limit that cannot be used."""


@dataclass(frozen=True)
class RetryLimits:
    """The limits of one agent."""

    #: Repetitions of a failed model call, after the first attempt.
    max_retries: int
    #: Repetitions of a failed tool call, where the tool may be repeated.
    tool_max_retries: int
    #: The pause before the first repetition in seconds; each further one is twice as long.
    base_delay_s: float


def retry_limits(settings: Mapping[str, Any]) -> RetryLimits:
    """Return the limits of an agent with these settings; what they leave out is the site's.

    Raises `InvalidRetryLimit`.
    """
    base_delay_ms = _whole(settings, "retry_base_delay_ms", site.AGENTOPS_RETRY_BASE_DELAY_MS, MAX_BASE_DELAY_MS)
    return RetryLimits(
        max_retries=_whole(settings, "max_retries", site.AGENTOPS_MAX_RETRIES, MAX_RETRIES),
        tool_max_retries=_whole(settings, "tool_max_retries", site.AGENTOPS_TOOL_MAX_RETRIES, MAX_RETRIES),
        base_delay_s=base_delay_ms / 1000,
    )


def _whole(settings: Mapping[str, Any], name: str, default: int, most: int) -> int:
    value = settings.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise InvalidRetryLimit(f"settings.{name} must be a whole number from 0 to {most}, not {str(value)[:64]!r}")
    return value
