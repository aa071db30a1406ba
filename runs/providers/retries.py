"""Classifies failed model calls, and decides whether and when to retry them.

The functions only return a `Failure` or a `RetryDelay`; the engine acts on it. The limits come from the settings of the
agent or of the site.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from django.conf import settings as site
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
from runs.providers.claude_cli.program_messages import FINAL_FAILURES, SessionFailed
from runs.providers.error_messages import CallFailure, describe, mentions_key, message_of

MAX_RETRIES = 100
MAX_BASE_DELAY_MS = 3_600_000


class InvalidRetryLimit(ValueError):
    """The settings of an agent contain an invalid retry limit."""


@dataclass(frozen=True)
class RetryLimits:
    """The retry limits of one agent."""

    #: Retries of a failed model call, without the first attempt.
    max_retries: int
    #: Retries of a failed tool call, if the tool may repeat.
    tool_max_retries: int
    #: The delay before the first retry, in seconds. It doubles with each retry.
    base_delay_s: float


def retry_limits(settings: Mapping[str, Any]) -> RetryLimits:
    """Return the limits of an agent with these settings; the site has defaults. Raises `InvalidRetryLimit`."""
    base_delay_ms = _whole_number(settings, "retry_base_delay_ms", site.AGENTOPS_RETRY_BASE_DELAY_MS, MAX_BASE_DELAY_MS)
    return RetryLimits(
        max_retries=_whole_number(settings, "max_retries", site.AGENTOPS_MAX_RETRIES, MAX_RETRIES),
        tool_max_retries=_whole_number(settings, "tool_max_retries", site.AGENTOPS_TOOL_MAX_RETRIES, MAX_RETRIES),
        base_delay_s=base_delay_ms / 1000,
    )


def _whole_number(settings: Mapping[str, Any], name: str, default: int, maximum: int) -> int:
    value = settings.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= maximum:
        raise InvalidRetryLimit(f"settings.{name} must be a whole number from 0 to {maximum}, not {str(value)[:64]!r}")
    return value


#: The longest delay during which a worker keeps the run. For a longer one, it releases the run, which then waits.
HOLD_WORKER_S = 10.0
#: The longest delay, even if the provider requests a longer one.
MAX_DELAY_S = 3600.0
#: The longest delay in an outage, as a share of AGENTOPS_OUTAGE_S: one minute of 15.
PAUSE_SHARE = 1 / 15
#: Error types by HTTP status, for errors that have no category.
BY_STATUS = {
    400: "invalid_request",
    401: "unauthorized",
    402: "out_of_credits",
    403: "unauthorized",
    404: "unknown_model",
    408: "timeout",
    409: "server_error",
    425: "server_error",
    429: "rate_limited",
    529: "overloaded",
}
#: Error types by pydantic-ai's exceptions, which are also raised for errors within a stream. The first match counts.
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
#: Texts in errors about missing credits, for which providers use various status codes.
NO_CREDITS = ("insufficient_quota", "credit balance is too low", "billing_hard_limit_reached")


@dataclass(frozen=True)
class Failure:
    """The classification of a failed attempt."""

    #: The type that policies name, for example "rate_limited".
    error_type: str
    #: The problem and the remedy.
    message: str
    #: Whether a retry can succeed.
    retryable: bool
    #: Seconds to wait, if the provider requested a delay.
    retry_after_s: float | None = None
    #: The message of the vendor or its library.
    details: str = ""


@dataclass(frozen=True)
class RetryDelay:
    """The delay before the next attempt."""

    delay_s: float
    #: Whether the immediate retries are used up, and the run waits for its provider.
    outage: bool = False


def classify(error: BaseException, now: datetime, model: str = "", *, server: str = "") -> Failure:
    """Return the classification of an exception that a provider raised. Secrets in its texts are masked.

    The message names `model`, and `server`: the host and port of the server that the agent names, if any.
    """
    if isinstance(error, FixtureExhausted):
        return Failure(error.code, str(error), retryable=False)
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
    """Return the classification of a failed session of Claude Code, by its error type or the status of its API."""
    error_type = error.error_type
    if error.status is not None and error_type == "api_error":
        error_type = BY_STATUS.get(error.status, "server_error" if error.status >= 500 else "invalid_request")
    retryable = error_type not in NOT_RETRYABLE and error_type not in FINAL_FAILURES
    return Failure(error_type, REDACTOR.clean_text(str(error))[0], retryable, details=_masked(error.details))


def next_attempt(attempt: int, failure: Failure, limits: RetryLimits, jitter: float) -> RetryDelay | None:
    """Return the delay after attempt `attempt` (from 0), or None if no immediate retry follows.

    `jitter` is a number from 0 to 1 and adds up to 25 %.
    """
    if not failure.retryable or attempt >= limits.max_retries:
        return None
    return RetryDelay(_delay_s(failure, _backoff_s(attempt, limits, jitter)))


def outage_pause(
    attempt: int, failure: Failure, limits: RetryLimits, jitter: float, *, left_s: float, outage_s: float
) -> RetryDelay | None:
    """Return the delay after attempt `attempt` during an outage of the provider, or None if the time is over.

    `outage_s`: how many seconds a run waits for its provider in total. `left_s`: the seconds that are left. The last
    attempt is made when they have passed, or later if the provider requests it.
    """
    if not failure.retryable or left_s <= 0:
        return None
    longest = min(outage_s * PAUSE_SHARE, left_s)
    backoff = min(_backoff_s(attempt, limits, jitter), longest)
    return RetryDelay(_delay_s(failure, backoff), outage=True)


def outage_left_s(first_failed_at: datetime | None, now: datetime, outage_s: float) -> float:
    """Return how many seconds a run still waits for its provider, counted from the first failure of the step."""
    since = first_failed_at or now
    return (since + timedelta(seconds=outage_s) - now).total_seconds()


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the seconds that a Retry-After header (a number or a date) requests; None if it is absent or invalid."""
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


def _delay_s(failure: Failure, backoff_s: float) -> float:
    """Return the delay: the backoff, or the delay that the provider requested if that is longer."""
    return min(max(backoff_s, failure.retry_after_s or 0.0), MAX_DELAY_S)


def _backoff_s(attempt: int, limits: RetryLimits, jitter: float) -> float:
    """Return the delay that doubles with each attempt. The exponent is limited, because an outage may have many."""
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
    # A broken stream raises exceptions of its HTTP library.
    return type(error).__name__


def _address_refusal(error: BaseException | None) -> UrlNotAllowed | None:
    """Return the refusal of a model server's address that an error wraps; None if it wraps none."""
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
    """Return the facts about a call, completed with facts from the exception."""
    status = error.status_code if isinstance(error, ModelHTTPError) else None
    refusal = _address_refusal(error)
    if refusal is not None:
        return replace(call, vendor_message=f"its base_url is not allowed: {refusal.reason}")
    body = error.body if isinstance(error, ModelAPIError) else str(error) or type(error).__name__
    # Mask secrets before the text is shortened: a part of a key would not be recognised.
    return replace(call, status=status, vendor_message=message_of(_masked(body)))


def _masked(value: Any) -> Any:
    return REDACTOR.clean(value)[0]
