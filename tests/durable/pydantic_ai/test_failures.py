"""Failures that are read from the journal have the classes that the library's rules look for."""

from __future__ import annotations

import builtins

import pytest
from pydantic_ai import exceptions
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, ModelRateLimitError

from agentops.durable import StepFailed
from agentops.durable.pydantic_ai.failures import original_of


@pytest.mark.parametrize(
    "error",
    [
        ModelHTTPError(418, "model-1", {"a": 1}),
        ModelHTTPError.for_category(ModelRateLimitError, status_code=429, model_name="model-1"),
        exceptions.ModelConnectionError("model-1", "reset"),
        exceptions.ContentFilterError("filtered"),
        exceptions.ModelRequestTimeout("model-1", 2.5, setting="first_event_timeout"),
        exceptions.UnexpectedModelBehavior("odd"),
        exceptions.UsageLimitExceeded("too many requests"),
        exceptions.UserError("wrong"),
        exceptions.ModelRetry("again"),
        ValueError("no number"),
        FileNotFoundError("no file"),
    ],
)
def test_classes_are_the_same_after_a_replay(error: Exception) -> None:
    kind = type(error).__name__
    live = StepFailed("model request", kind, str(error))
    live.__cause__ = error
    stored = original_of(StepFailed("model request", kind, str(error)), "model-1")

    assert original_of(live, "model-1") is error
    assert (type(stored), str(error) in str(stored)) == (type(error), True)
    assert getattr(stored, "status_code", None) == getattr(error, "status_code", None)


def test_a_time_limit_of_a_request_is_an_error_of_the_provider() -> None:
    stored = original_of(StepFailed("model request", "ModelRequestTimeout", "too late"), "model-1")
    assert isinstance(stored, ModelAPIError)


class Overdrawn(ValueError):
    """An exception of the program itself, whose class the journal does not have."""


@pytest.mark.parametrize(
    "error", [Overdrawn("no"), UnicodeDecodeError("ascii", b"", 0, 1, "no"), ExceptionGroup("no", [ValueError()])]
)
def test_classes_that_the_journal_cannot_give_back_are_failures_in_each_execution(error: Exception) -> None:
    live, stored = (StepFailed("send", type(error).__name__, str(error)) for _ in range(2))
    live.__cause__ = error

    assert original_of(live) is live
    assert original_of(stored) is stored


def test_an_exception_with_the_name_of_another_class_is_the_same_in_each_execution() -> None:
    class TimeoutError(Exception):  # noqa: A001
        pass

    live, stored = StepFailed("send", "TimeoutError", "late"), StepFailed("send", "TimeoutError", "late")
    live.__cause__ = TimeoutError("late")

    assert type(original_of(live)) is type(original_of(stored)) is builtins.TimeoutError


def test_types_of_the_site_stay() -> None:
    for kind in ("outcome_unknown", "annotations", "StopIteration"):
        failure = StepFailed("send", kind, "no")
        assert original_of(failure) is failure
