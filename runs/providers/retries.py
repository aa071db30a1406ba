"""Classification of failed model calls, and the decision whether and when to retry them.

The functions are pure: they return a `Failure` or a `RetryDelay`, and the engine acts on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
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

from agentops.base import database_clock
from agentops.base.http.address_policy import UrlNotAllowed
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.providers.base import AnswerTooLong, FixtureExhausted, IncompleteAnswer, ProviderUnusable
from runs.providers.claude_cli.failures import FINAL, SessionFailed
from runs.providers.error_messages import CallFailure, describe, mentions_key, message_of
from runs.providers.retry_limits import RetryLimits

#: The longest delay during which a worker keeps the run. For longer delays it releases the run, which then waits.
HOLD_WORKER_S = 10.0
#: The limit of the delay in a Retry-After header.
MAX_DELAY_S = 3600.0
#: The longest delay in an outage, as a share of AGENTOPS_OUTAGE_S: one minute of 15.
PAUSE_SHARE = 1 / 15
BY_STATUS = {
    400: "invalid_request", 401: "unauthorized", 402: "out_of_credits", 403: "unauthorized", 404: "unknown_model",
    408: "timeout", 409: "server_error", 425: "server_error", 429: "rate_limited", 529: "overloaded",
}  # fmt: skip
#: pydantic-ai's exception classes, which are also raised for errors within a stream. The first match counts.
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
#: Error types that a person has to fix. All others are retried.
NOT_RETRYABLE = frozenset(
    {
        *("unauthorized", "missing_key", "out_of_credits", "unknown_model", "context_too_long", "invalid_request"),
        *("missing_library", "unusable_model", "answer_too_long"),
    }
)
#: Texts in the body of errors about missing credits, which providers send with various status codes.
NO_CREDITS = ("insufficient_quota", "credit balance is too low", "billing_hard_limit_reached")


@dataclass(frozen=True)
class Failure:
    """The classification of a failed attempt."""

    #: The type that policies match, for example "rate_limited".
    error_type: str
    #: The problem and the remedy.
    message: str
    #: Whether a retry can succeed.
    retryable: bool
    #: The delay that the provider requested, in seconds.
    retry_after_s: float | None = None
    #: The message of the vendor or its library.
    details: str = ""
    #: Whether the run can be resumed afterwards.
    resumable: bool = True


@dataclass(frozen=True)
class RetryDelay:
    """The delay before the next attempt. `outage`: the immediate retries are used up."""

    delay_s: float
    outage: bool = False


def classify(
    error: BaseException,
    now: datetime,
    model: str = "",
    *,
    server: str = "",
) -> Failure:
    """Return the classification of an exception that a provider raised.

    The message contains `model`, and `server`, the host and port that the agent names instead of the vendor's. Secrets
    in the vendor's message are masked.
    """
    if isinstance(error, FixtureExhausted):
        return Failure(error.code, str(error), retryable=False, resumable=False)
    if isinstance(error, ProviderUnusable):
        return Failure("unusable_model", str(error), retryable=False)
    if isinstance(error, SessionFailed):
        return _session_failure(error)
    error_type, call = _error_type_of(error, model), _call_failure(error, CallFailure(model, server=server))
    if isinstance(error, ModelHTTPError):
        retry_after_s = retry_after(error.headers or {}, now)
    else:
        retry_after_s = error.retry_after if isinstance(error, ModelAPIError) else None
    details = REDACTOR.clean_text(str(error) or repr(error))[0]
    if error_type == "unauthorized" and call.status == 403:
        return Failure(error_type, describe("forbidden", call), retryable=False, details=details)
    return Failure(error_type, describe(error_type, call), error_type not in NOT_RETRYABLE, retry_after_s, details)


def _session_failure(error: SessionFailed) -> Failure:
    """Return the classification of a failed session of a program, which names the type of the error, or a status of its
    API.
    """
    error_type = error.error_type
    if error.status is not None and error_type == "api_error":
        error_type = BY_STATUS.get(error.status, "server_error" if error.status >= 500 else "invalid_request")
    retryable = error_type not in NOT_RETRYABLE and error_type not in FINAL
    return Failure(error_type, REDACTOR.clean_text(str(error))[0], retryable, details=_masked(error.details))


def next_attempt(attempt: int, failure: Failure, limits: RetryLimits, jitter: float) -> RetryDelay | None:
    """Return the delay after attempt `attempt` (from 0), or None if no immediate retry follows.

    `jitter` is a number from 0 to 1 and adds up to 25 %.
    """
    if not failure.retryable or attempt >= limits.max_retries:
        return None
    return RetryDelay(_pause_s(attempt, failure, limits, jitter))


def outage_pause(
    attempt: int, failure: Failure, limits: RetryLimits, jitter: float, *, left_s: float, outage_s: float
) -> RetryDelay | None:
    """Return the delay after attempt `attempt` during an outage of the provider, or None if the time is used up.

    The last attempt is made when `left_s` has passed, or later if the provider requested it. `outage_s` is how long
    a run waits for its provider in total.
    """
    if not failure.retryable or left_s <= 0:
        return None
    longest = min(outage_s * PAUSE_SHARE, left_s)
    backoff = min(_backoff_s(attempt, limits, jitter), longest)
    return RetryDelay(min(max(backoff, failure.retry_after_s or 0.0), MAX_DELAY_S), outage=True)


def outage_left_s(first_failed_at: datetime | None, now: datetime, outage_s: float) -> float:
    """Return how many seconds a run still waits for its provider, counted from the first failure of the step."""
    since = first_failed_at or now
    return (since + timedelta(seconds=outage_s) - now).total_seconds()


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the value of a Retry-After header (a number or a date) in seconds, or None if absent or invalid."""
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(int(value[:9]))
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return database_clock.seconds_between(now, moment)


def _pause_s(attempt: int, failure: Failure, limits: RetryLimits, jitter: float) -> float:
    return min(max(_backoff_s(attempt, limits, jitter), failure.retry_after_s or 0.0), MAX_DELAY_S)


def _backoff_s(attempt: int, limits: RetryLimits, jitter: float) -> float:
    """Double the delay with each attempt. The exponent is bounded because attempts may be unlimited."""
    backoff: float = limits.base_delay_s * 2 ** min(attempt, 32) * (1 + jitter / 4)
    return backoff


def _error_type_of(error: BaseException, model: str) -> str:
    text = str(error)
    if any(marker in text.lower() for marker in NO_CREDITS):
        return "out_of_credits"
    if _address_refusal(error) is not None:
        return "unusable_model"
    if isinstance(error, ModelAPIError):
        return _api_error_type_of(error)
    if isinstance(error, ImportError):
        return "missing_library"
    if isinstance(error, UserError):
        return "missing_key" if mentions_key(text) else "unusable_model"
    if isinstance(error, IncompleteAnswer):
        return "incomplete_answer"
    if isinstance(error, AnswerTooLong):
        return "answer_too_long"
    if isinstance(error, asyncio.TimeoutError | TimeoutError):
        return "timeout"
    if isinstance(error, ConnectionError | OSError):
        return "no_internet"
    # A broken stream raises the exceptions of its HTTP library.
    return type(error).__name__


def _address_refusal(error: BaseException | None) -> UrlNotAllowed | None:
    """Return the refusal of a model server's address, which libraries wrap in other errors."""
    while error is not None and not isinstance(error, UrlNotAllowed):
        error = error.__cause__ or error.__context__
    return error


def _api_error_type_of(error: ModelAPIError) -> str:
    status = error.status_code if isinstance(error, ModelHTTPError) else None
    if status == 402:
        return "out_of_credits"
    for category, error_type in BY_CATEGORY:
        if isinstance(error, category):
            return error_type
    if status is None:
        return "no_internet"
    return BY_STATUS.get(status, "server_error" if status >= 500 else "invalid_request")


def _call_failure(error: BaseException, call: CallFailure) -> CallFailure:
    """Return the facts about a call, completed from the exception."""
    status = error.status_code if isinstance(error, ModelHTTPError) else None
    refusal = _address_refusal(error)
    if refusal is not None:
        return replace(call, vendor_message=f"its base_url is not allowed: {refusal.reason}")
    body = error.body if isinstance(error, ModelAPIError) else str(error) or type(error).__name__
    # Redacted before it is shortened: a part of a key would not be recognised.
    return replace(call, status=status, vendor_message=message_of(_masked(body)))


def _masked(value: Any) -> Any:
    return REDACTOR.clean(value)[0]
