"""Failures that are read from the journal have the classes that the library's rules look for."""

from __future__ import annotations

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
        exceptions.UnexpectedModelBehavior("odd"),
    ],
)
def test_classes_are_the_same_after_a_replay(error: Exception) -> None:
    kind = type(error).__name__
    live = StepFailed("model request", kind, str(error))
    live.__cause__ = error
    stored = original_of(StepFailed("model request", kind, str(error)), "model-1")

    assert original_of(live) is error
    assert type(stored) is type(error)
    assert getattr(stored, "status_code", None) == getattr(error, "status_code", None)


def test_a_time_limit_of_a_request_is_an_error_of_the_provider() -> None:
    stored = original_of(StepFailed("model request", "ModelRequestTimeout", "too late"), "model-1")
    assert isinstance(stored, ModelAPIError)


def test_other_failures_stay() -> None:
    for kind in ("ValueError", "ModelRetry", "annotations"):
        failure = StepFailed("send", kind, "no")
        assert original_of(failure) is failure
