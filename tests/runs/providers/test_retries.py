"""Retries of a failed model call, decided without a clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, ModelOverloadedError, UserError

from runs.providers.base import FixtureExhausted, IncompleteAnswer, ProviderUnusable
from runs.providers.retries import (
    Failure,
    RetryDelay,
    RetryLimits,
    classify,
    next_attempt,
    outage_left_s,
    outage_pause,
    retry_after,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
LIMITS = RetryLimits(max_retries=3, tool_max_retries=1, base_delay_s=0.5)


@pytest.mark.parametrize(
    ("error", "word", "retryable"),
    [
        (ModelHTTPError(429, "m"), "rate_limited", True),
        (ModelHTTPError(500, "m"), "server_error", True),
        (ModelHTTPError(529, "m"), "overloaded", True),
        (ModelHTTPError(408, "m"), "timeout", True),
        (ModelHTTPError(400, "m"), "invalid_request", False),
        (ModelHTTPError(401, "m"), "unauthorized", False),
        (ModelHTTPError(403, "m"), "unauthorized", False),
        (ModelHTTPError(404, "m"), "unknown_model", False),
        (ModelHTTPError(402, "m"), "out_of_credits", False),
        (ModelHTTPError(429, "m", {"error": {"code": "insufficient_quota"}}), "out_of_credits", False),
        (ModelHTTPError(400, "m", {"error": {"message": "Your credit balance is too low"}}), "out_of_credits", False),
        (ModelOverloadedError("m", "in the middle of a stream"), "overloaded", True),
        (ModelAPIError("m", "connection reset"), "no_internet", True),
        (IncompleteAnswer("no terminal event"), "incomplete_answer", True),
        (TimeoutError(), "timeout", True),
        (ConnectionResetError("cut"), "no_internet", True),
        (FixtureExhausted("n", 3), "fixture_exhausted", False),
        (UserError("Set the `OPENAI_API_KEY` environment variable"), "missing_key", False),
        (UserError("no such profile"), "unusable_model", False),
        (ProviderUnusable("gone"), "unusable_model", False),
        (ImportError("no library"), "missing_library", False),
        (RuntimeError("incomplete chunked read"), "RuntimeError", True),
    ],
)
def test_classification_of_failures(error: Exception, word: str, retryable: bool) -> None:
    failure = classify(error, NOW)
    assert (failure.error_type, failure.retryable) == (word, retryable)
    assert failure.message


def failing(word: str = "server_error", *, after_s: float | None = None, retryable: bool = True) -> Failure:
    return Failure(word, "x", retryable, after_s)


def at_once(attempt: int, failure: Failure, jitter: float = 0.0) -> float | None:
    pause = next_attempt(attempt, failure, LIMITS, jitter)
    return None if pause is None else pause.delay_s


def test_the_delay_doubles_until_the_retries_are_used_up() -> None:
    """500, 1000 and 2000 ms, with jitter."""
    assert [at_once(attempt, failing()) for attempt in range(4)] == [0.5, 1.0, 2.0, None]
    assert at_once(0, failing(), jitter=1.0) == 0.625


def test_permanent_failures_are_not_retried() -> None:
    failure = failing("unauthorized", retryable=False)
    assert at_once(0, failure) is None
    assert outage_pause(9, failure, LIMITS, 0.0, left_s=900, outage_s=900) is None


def test_a_longer_delay_requested_by_the_server_wins() -> None:
    assert at_once(0, failing(after_s=30.0)) == 30.0
    assert at_once(2, failing(after_s=0.1)) == 2.0
    assert at_once(0, failing(after_s=1e9)) == 3600.0


def test_delays_during_an_outage_grow_to_a_minute_and_end_with_its_time_limit() -> None:
    """15 minutes of growing delays, with a last attempt when the time is over."""
    pauses, attempt, now = [], 3, 0.0
    while (pause := outage_pause(attempt, failing(), LIMITS, 0.0, left_s=900 - now, outage_s=900)) is not None:
        assert pause.outage
        pauses.append(pause.delay_s)
        attempt, now = attempt + 1, now + pause.delay_s

    assert pauses[:6] == [4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert pauses == sorted(pauses[:-1]) + pauses[-1:]
    assert sum(pauses) == 900


def test_an_outage_waits_as_long_as_the_provider_requests() -> None:
    pause = outage_pause(3, failing(after_s=1800.0), LIMITS, 0.0, left_s=60, outage_s=900)
    assert pause is not None
    assert pause.delay_s == 1800.0
    assert outage_pause(10**9, failing(), LIMITS, 1.0, left_s=900, outage_s=900) == RetryDelay(60.0, outage=True)


def test_the_time_of_an_outage_begins_with_its_first_failure() -> None:
    assert outage_left_s(None, NOW, 900) == 900
    assert outage_left_s(NOW - timedelta(seconds=300), NOW, 900) == 600
    assert outage_left_s(NOW - timedelta(seconds=1000), NOW, 900) == -100


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90.0),
        (format_datetime(NOW - timedelta(seconds=90), usegmt=True), 0.0),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("１０", None),
        ("9" * 400, 999999999.0),
        ("Thu, 01 Jan 99999999999 00:00:00 GMT", None),
        ("Thu, 01 Jan 2026 00:00:00 +99999999999999999999", None),
    ],
)
def test_both_forms_of_retry_after(value: str, seconds: float | None) -> None:
    assert retry_after({"retry-after": value}, NOW) == seconds
