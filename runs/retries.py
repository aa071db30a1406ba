"""What a failed model call means, and whether and when it is tried again.

Pure: imports pydantic-ai and the parts whose errors it names. Decisions are values; the engine acts on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, UserError

from runs.fixtures.format import FixtureExhausted
from runs.providers.base import ProviderUnusable

MAX_RETRIES = 3
BASE_DELAY_S = 0.5
#: A longer wait gives the worker back: the run waits by itself.
HOLD_WORKER_S = 10.0
MAX_DELAY_S = 3600.0
NOT_RETRIED = frozenset({400, 401, 403, 404})
BY_STATUS = {401: "unauthorized", 403: "unauthorized", 402: "out_of_credits", 408: "timeout", 429: "rate_limited"}

#: Providers tell of an empty purse with the status of another fault, and say so only in the body.
NO_CREDITS = ("insufficient_quota", "credit balance is too low", "billing_hard_limit_reached")


@dataclass(frozen=True)
class Failure:
    """A failed attempt: a word for policies, a text for people, and what the other side asked for."""

    error_type: str
    message: str
    retryable: bool
    retry_after_s: float | None = None


def classify(error: BaseException, now: datetime) -> Failure:
    """What went wrong, from whatever a provider raised."""
    if isinstance(error, ModelHTTPError):
        code = error.status_code
        text = str(error)
        named = BY_STATUS.get(code, "server_error" if code >= 500 else "invalid_request")
        if code in (400, 403, 429) and any(word in text.lower() for word in NO_CREDITS):
            named = "out_of_credits"
        return Failure(named, text, code not in NOT_RETRIED, retry_after(error.headers or {}, now))
    if isinstance(error, FixtureExhausted):
        return Failure(error.code, str(error), retryable=False)
    if isinstance(error, UserError | ProviderUnusable | ImportError):
        return Failure("unusable_model", str(error), retryable=False)
    if isinstance(error, asyncio.TimeoutError | TimeoutError):
        return Failure("timeout", str(error) or "the model stopped sending", retryable=True)
    if isinstance(error, ModelAPIError | ConnectionError | OSError):
        return Failure("no_internet", str(error) or type(error).__name__, retryable=True)
    # A stream that breaks in the middle raises whatever its HTTP library raises.
    return Failure(type(error).__name__, str(error), retryable=True)


def delay_s(attempt: int, failure: Failure, jitter: float) -> float | None:
    """Seconds until attempt `attempt` + 1 (0-based), or None to give up. `jitter` is in 0..1: up to 25 % more."""
    if not failure.retryable or attempt >= MAX_RETRIES:
        return None
    backoff: float = BASE_DELAY_S * 2**attempt * (1 + jitter / 4)
    return min(max(backoff, failure.retry_after_s or 0.0), MAX_DELAY_S)


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds of a Retry-After header, in either of its forms; None where it is absent or senseless."""
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(int(value[:9]))
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max((moment - now).total_seconds(), 0.0)
