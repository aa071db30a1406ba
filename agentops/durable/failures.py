"""The exceptions that adapters of frameworks raise for failed steps."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping

from agentops.durable.errors import StepFailed

#: Makes an exception of its class from its text.
FromText = Callable[[str], Exception]


def exception_of(error: StepFailed, further: Mapping[str, type[Exception]] | None = None) -> Exception:
    """Return a built-in exception of a step's function, or one of the `further` ones; otherwise the failure itself.

    The journal has the name of the exception's class and its text. Only these decide about the class, so that code
    which handles exceptions does the same in each execution, whether the step has failed in it or was read back.
    """
    kind = {**_BUILT_IN, **(further or {})}.get(error.type)
    if type(error) is not StepFailed or kind is None:
        return error
    return same_or(error, kind, kind)


def same_or(error: StepFailed, kind: type[Exception], make: FromText) -> Exception:
    """Return the exception of the step's function if this process has it and it has the class, or make another one."""
    cause = error.__cause__
    return cause if isinstance(cause, Exception) and type(cause) is kind else make(error.message)


def _has_only_a_text(kind: type[Exception]) -> bool:
    try:
        kind("")
    except TypeError:
        return False
    # A coroutine cannot raise these two.
    return not issubclass(kind, StopIteration | StopAsyncIteration)


_BUILT_IN: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in vars(builtins).values()
    if isinstance(kind, type) and issubclass(kind, Exception) and _has_only_a_text(kind)
}
