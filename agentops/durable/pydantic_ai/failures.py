"""Exceptions of steps as the library raised them, so that its rules for fallbacks and retries apply."""

from __future__ import annotations

import re

from pydantic_ai import exceptions
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, ModelRequestTimeout, UnexpectedModelBehavior

from agentops.durable.errors import StepFailed

_STATUS = re.compile(r"status_code: (\d{3})\b")


def original_of(error: StepFailed, model: str = "") -> Exception:
    """Return the exception of a step's function; after a replay, one of the same class where the class is known."""
    cause = error.__cause__
    if isinstance(cause, Exception) and type(cause).__name__ == error.type:
        return cause
    kind = getattr(exceptions, error.type, None)
    if not isinstance(kind, type):
        return error
    if issubclass(kind, ModelAPIError):
        return _model_error(kind, error.message, model)
    return kind(error.message) if issubclass(kind, UnexpectedModelBehavior) else error


def _model_error(kind: type[ModelAPIError], message: str, model: str) -> ModelAPIError:
    """Return an error of a provider. Those with an HTTP status have it in their message."""
    if (status := _STATUS.search(message)) is None:
        return ModelAPIError(model, message) if kind is ModelRequestTimeout else kind(model, message)
    facts = {"status_code": int(status[1]), "model_name": model, "body": message}
    try:
        return ModelHTTPError.for_category(kind, **facts)  # type: ignore[arg-type]
    except TypeError:
        return ModelHTTPError(**facts)  # type: ignore[arg-type]
