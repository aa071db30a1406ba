"""Retry limits: number and delay of retries, from the agent's settings or the site's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings as site

MAX_RETRIES = 100
MAX_BASE_DELAY_MS = 3_600_000


class InvalidRetryLimit(ValueError):
    """The settings of an agent contain an invalid retry limit."""


@dataclass(frozen=True)
class RetryLimits:
    """The retry limits of one agent."""

    #: Retries of a failed model call, without the first attempt.
    max_retries: int
    #: Retries of a failed tool call, if the tool is repeatable.
    tool_max_retries: int
    #: The delay before the first retry, in seconds. It doubles with each retry.
    base_delay_s: float


def retry_limits(settings: Mapping[str, Any]) -> RetryLimits:
    """Return the limits of an agent with these settings; missing ones default to the site's settings.

    Raises `InvalidRetryLimit`.
    """
    base_delay_ms = _whole(settings, "retry_base_delay_ms", site.AGENTOPS_RETRY_BASE_DELAY_MS, MAX_BASE_DELAY_MS)
    return RetryLimits(
        max_retries=_whole(settings, "max_retries", site.AGENTOPS_MAX_RETRIES, MAX_RETRIES),
        tool_max_retries=_whole(settings, "tool_max_retries", site.AGENTOPS_TOOL_MAX_RETRIES, MAX_RETRIES),
        base_delay_s=base_delay_ms / 1000,
    )


def _whole(settings: Mapping[str, Any], name: str, default: int, maximum: int) -> int:
    value = settings.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= maximum:
        raise InvalidRetryLimit(f"settings.{name} must be a whole number from 0 to {maximum}, not {str(value)[:64]!r}")
    return value
