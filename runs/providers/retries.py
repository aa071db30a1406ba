"""What a failed model call means, and whether and when it is tried again.

Decisions are values; the engine acts on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelAuthenticationError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelOverloadedError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelRequestTimeout,
    ModelServerError,
    ModelTimeoutError,
    ModelUnavailableError,
    UserError,
)

from runs.providers.base import FixtureExhausted, IncompleteAnswer, ProviderUnusable
from runs.providers.error_messages import CallFailure, names_a_key, sentence, words_of
from runs.providers.retry_limits import RetryLimits

#: A longer wait gives the worker back: the run waits by itself.
HOLD_WORKER_S = 10.0
#: The longest pause that a provider may ask for.
MAX_DELAY_S = 3600.0
#: A pause in an outage is at most this share of the time that a run waits for its end: a minute of 15.
PAUSE_SHARE = 1 / 15
BY_STATUS = {
    400: "invalid_request", 401: "unauthorized", 402: "out_of_credits", 403: "unauthorized", 404: "unknown_model",
    408: "timeout", 409: "server_error", 425: "server_error", 429: "rate_limited", 529: "overloaded",
}  # fmt: skip
#: pydantic-ai's categories, which errors inside a stream have too; the first that fits is taken.
BY_CATEGORY: tuple[tuple[type[ModelAPIError], str], ...] = (
    (ModelQuotaExceededError, "out_of_credits"),
    (ModelAuthenticationError, "unauthorized"),
    (ModelNotFoundError, "unknown_model"),
    (ModelContextWindowExceededError, "context_too_long"),
    (ModelRateLimitError, "rate_limited"),
    (ModelOverloadedError, "overloaded"),
    (ModelUnavailableError, "server_error"),
    (ModelServerError, "server_error"),
    (ModelTimeoutError, "timeout"),
    (ModelRequestTimeout, "timeout"),
    (ModelRequestRejectedError, "invalid_request"),
)
#: What people have to mend; everything else passes by itself, or might.
FOR_PEOPLE = frozenset(
    {
        *("unauthorized", "missing_key", "out_of_credits", "unknown_model", "context_too_long", "invalid_request"),
        *("missing_library", "unusable_model"),
    }
)
#: Providers tell of an empty purse with the status of another fault, and say so only in the body.
NO_CREDITS = ("insufficient_quota", "credit balance is too low", "billing_hard_limit_reached")


@dataclass(frozen=True)
class Failure:
    """A failed attempt: a word for policies, a text for people, and what the other side asked for."""

    error_type: str
    message: str
    #: Whether it may pass by itself.
    retryable: bool
    retry_after_s: float | None = None
    #: What the vendor or its library said.
    details: str = ""
    #: Whether a person can resume the run after it.
    resumable: bool = True


@dataclass(frozen=True)
class RetryDelay:
    """When a failed call is tried again. `outage`: the attempts at once are used up."""

    delay_s: float
    outage: bool = False


def classify(
    error: BaseException, now: datetime, model: str = "", *, clean: Callable[[Any], Any] = lambda said: said
) -> Failure:
    """What went wrong, from whatever a provider raised. `model` is named in the text; `clean` takes what nobody may
    read out of a text, or a JSON value, of the vendor's."""
    if isinstance(error, FixtureExhausted):
        return Failure(error.code, str(error), retryable=False, resumable=False)
    if isinstance(error, ProviderUnusable):
        return Failure("unusable_model", str(error), retryable=False)
    word, facts = _word_of(error, model), _facts_of(error, model, clean)
    if isinstance(error, ModelHTTPError):
        asked = retry_after(error.headers or {}, now)
    else:
        asked = error.retry_after if isinstance(error, ModelAPIError) else None
    details = clean(str(error) or repr(error))
    if word == "unauthorized" and facts.status == 403:
        return Failure(word, sentence("forbidden", facts), retryable=False, details=details)
    return Failure(word, sentence(word, facts), word not in FOR_PEOPLE, asked, details)


def next_attempt(attempt: int, failure: Failure, limits: RetryLimits, jitter: float) -> RetryDelay | None:
    """The pause after attempt `attempt` (0-based), or None where the attempts at once are used up or cannot help.

    `jitter` is in 0..1: up to 25 % more.
    """
    if not failure.retryable or attempt >= limits.max_retries:
        return None
    return RetryDelay(_pause_s(attempt, failure, limits, jitter))


def outage_pause(
    attempt: int, failure: Failure, limits: RetryLimits, jitter: float, *, left_s: float, outage_s: float
) -> RetryDelay | None:
    """The pause after attempt `attempt` while a provider is away; None when no time for it is left.

    The last attempt comes when the time is over, unless the provider named a later one.
    """
    if not failure.retryable or left_s <= 0:
        return None
    longest = min(outage_s * PAUSE_SHARE, left_s)
    backoff = min(_backoff_s(attempt, limits, jitter), longest)
    return RetryDelay(min(max(backoff, failure.retry_after_s or 0.0), MAX_DELAY_S), outage=True)


def outage_left_s(first_failed_at: datetime | None, now: datetime, outage_s: float) -> float:
    """Seconds that a run still waits for its provider, counted from the first failure of the step."""
    since = first_failed_at or now
    return (since + timedelta(seconds=outage_s) - now).total_seconds()


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


def _pause_s(attempt: int, failure: Failure, limits: RetryLimits, jitter: float) -> float:
    return min(max(_backoff_s(attempt, limits, jitter), failure.retry_after_s or 0.0), MAX_DELAY_S)


def _backoff_s(attempt: int, limits: RetryLimits, jitter: float) -> float:
    """Doubled with each attempt; the exponent is bounded because attempts are not."""
    backoff: float = limits.base_delay_s * 2 ** min(attempt, 32) * (1 + jitter / 4)
    return backoff


def _word_of(error: BaseException, model: str) -> str:
    text = str(error)
    if any(word in text.lower() for word in NO_CREDITS):
        return "out_of_credits"
    if isinstance(error, ModelAPIError):
        return _word_of_api(error)
    if isinstance(error, ImportError):
        return "missing_library"
    if isinstance(error, UserError):
        return "missing_key" if names_a_key(text) else "unusable_model"
    if isinstance(error, IncompleteAnswer):
        return "incomplete_answer"
    if isinstance(error, asyncio.TimeoutError | TimeoutError):
        return "timeout"
    if isinstance(error, ConnectionError | OSError):
        return "no_internet"
    # A stream that breaks in the middle raises whatever its HTTP library raises.
    return type(error).__name__


def _word_of_api(error: ModelAPIError) -> str:
    status = error.status_code if isinstance(error, ModelHTTPError) else None
    if status == 402:
        return "out_of_credits"
    for category, word in BY_CATEGORY:
        if isinstance(error, category):
            return word
    if status is None:
        return "no_internet"
    return BY_STATUS.get(status, "server_error" if status >= 500 else "invalid_request")


def _facts_of(error: BaseException, model: str, clean: Callable[[Any], Any]) -> CallFailure:
    status = error.status_code if isinstance(error, ModelHTTPError) else None
    body = error.body if isinstance(error, ModelAPIError) else str(error) or type(error).__name__
    # Before it is cut: a piece of a key would not be known for one.
    return CallFailure(model, status, words_of(clean(body)))
