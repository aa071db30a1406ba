"""When a failed model call is tried again (S-410), decided without a clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, UserError

from runs.fixtures.format import FixtureExhausted
from runs.providers.base import ProviderUnusable
from runs.retries import MAX_RETRIES, Failure, classify, delay_s, retry_after

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("error", "word", "retryable"),
    [
        (ModelHTTPError(429, "m"), "rate_limited", True),
        (ModelHTTPError(500, "m"), "server_error", True),
        (ModelHTTPError(529, "m"), "server_error", True),
        (ModelHTTPError(408, "m"), "timeout", True),
        (ModelHTTPError(400, "m"), "invalid_request", False),
        (ModelHTTPError(401, "m"), "unauthorized", False),
        (ModelHTTPError(403, "m"), "unauthorized", False),
        (ModelHTTPError(404, "m"), "invalid_request", False),
        (ModelHTTPError(402, "m"), "out_of_credits", True),
        (ModelAPIError("m", "connection reset"), "no_internet", True),
        (TimeoutError(), "timeout", True),
        (ConnectionResetError("cut"), "no_internet", True),
        (FixtureExhausted("n", 3), "fixture_exhausted", False),
        (UserError("no key"), "unusable_model", False),
        (ProviderUnusable("gone"), "unusable_model", False),
        (ImportError("no library"), "unusable_model", False),
        (RuntimeError("incomplete chunked read"), "RuntimeError", True),
    ],
)
def test_what_a_failure_is_called(error: Exception, word: str, retryable: bool) -> None:
    failure = classify(error, NOW)
    assert (failure.error_type, failure.retryable) == (word, retryable)
    assert failure.message


def test_the_delay_doubles_and_ends() -> None:
    failure = Failure("server_error", "x", retryable=True)
    assert [delay_s(attempt, failure, 0.0) for attempt in range(MAX_RETRIES + 1)] == [0.5, 1.0, 2.0, None]
    assert delay_s(0, failure, 1.0) == 0.625


def test_what_cannot_help_is_not_tried_again() -> None:
    assert delay_s(0, Failure("unauthorized", "x", retryable=False), 0.0) is None


def test_the_other_side_s_wish_wins_when_longer() -> None:
    assert delay_s(0, Failure("rate_limited", "x", True, 30.0), 0.0) == 30.0
    assert delay_s(2, Failure("rate_limited", "x", True, 0.1), 0.0) == 2.0
    assert delay_s(0, Failure("rate_limited", "x", True, 1e9), 0.0) == 3600.0


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
    ],
)
def test_retry_after_in_either_form(value: str, seconds: float | None) -> None:
    assert retry_after({"retry-after": value}, NOW) == seconds
