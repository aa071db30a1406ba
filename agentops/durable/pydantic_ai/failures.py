"""Exceptions of steps as the library raised them, so that its rules for fallbacks and retries apply."""

from __future__ import annotations

import re
from typing import Any

from pydantic_ai import exceptions
from pydantic_ai.exceptions import (
    AgentRunError,
    ModelAPIError,
    ModelHTTPError,
    ModelRequestTimeout,
    ModelRetry,
    ToolFailed,
    UserError,
)

from agentops.durable.errors import StepFailed
from agentops.durable.failures import exception_of, same_or

_STATUS = re.compile(r"status_code: (\d{3})\b")
_TIME_LIMIT = re.compile(r"timed out after ([\d.e+-]+) seconds( without)?")
#: Exceptions that are made from a text, except the errors of providers.
_FROM_TEXT: dict[str, type[Exception]] = {
    name: kind
    for name, kind in vars(exceptions).items()
    if isinstance(kind, type)
    and issubclass(kind, AgentRunError | UserError | ModelRetry | ToolFailed)
    and not issubclass(kind, ModelAPIError)
}


def original_of(error: StepFailed, model: str = "") -> Exception:
    """Return the exception of a step's function, if its class can be made again from the journal.

    Otherwise the failure itself: also if this process has the exception, so that the same code handles both.
    """
    kind = getattr(exceptions, error.type, None)
    if type(error) is StepFailed and isinstance(kind, type) and issubclass(kind, ModelAPIError):
        made = _model_error(kind, error.message, model)
        return same_or(error, type(made), lambda _: made)
    return exception_of(error, _FROM_TEXT)


def _model_error(kind: type[ModelAPIError], message: str, model: str) -> ModelAPIError:
    """Return an error of a provider. What else than a text it needs is part of its message."""
    if issubclass(kind, ModelRequestTimeout):
        return _time_limit(message, model)
    if (status := _STATUS.search(message)) is None:
        return kind(model, message)
    facts: dict[str, Any] = {"status_code": int(status[1]), "model_name": model, "body": message}
    try:
        return ModelHTTPError.for_category(kind, **facts)  # type: ignore[arg-type]
    except TypeError:
        return ModelHTTPError(**facts)


def _time_limit(message: str, model: str) -> ModelAPIError:
    if (limit := _TIME_LIMIT.search(message)) is None:
        return ModelAPIError(model, message)
    setting: Any = "first_event_timeout" if limit[2] else "request_timeout"
    return ModelRequestTimeout(model, float(limit[1]), setting=setting)
