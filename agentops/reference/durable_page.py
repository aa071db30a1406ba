"""docs/reference/durable.md: what agentops.durable exports, from signatures, docstrings and comments."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

from agentops import durable
from agentops.durable import (
    Answer,
    Call,
    ChildRun,
    Codec,
    Decision,
    DurableFunction,
    DurableRun,
    RetryPolicy,
    SyncDurableRun,
    Usage,
)
from agentops.durable import durable as decorator
from agentops.reference.client_page import class_section, field_rows, signature_text
from agentops.reference.markdown import code, flat, page, table

INTRODUCTION = """\
Everything here is imported from `agentops.durable`. [The guide](../guides/durable.md) shows how it is used.

Methods of `DurableRun` that return a `Coroutine` are awaited. `SyncDurableRun`, the run of a synchronous function, has
the same methods, which return the value itself."""


def durable_page() -> str:
    """Return the page: the functions, the run, then values and exceptions."""
    functions = [_function(each) for each in (decorator, durable.serve, durable.serve_forever)]
    values = [_dataclass(each) for each in (RetryPolicy, Answer, Call, Usage, Decision, ChildRun)]
    classes = [f"## {code(each.__name__)}\n\n{inspect.getdoc(each)}" for each in (SyncDurableRun, DurableFunction)]
    return page(
        "Durable functions",
        INTRODUCTION,
        *functions,
        class_section(DurableRun),
        *classes,
        class_section(Codec),
        "## Values",
        *values,
        _exceptions(),
    )


def _function(function: Callable[..., Any]) -> str:
    name = function.__name__
    return f"## {code(name)}\n\n`{name}{signature_text(function)}`\n\n{inspect.getdoc(function)}"


def _dataclass(cls: type[Any]) -> str:
    names = {field.name for field in dataclasses.fields(cls)}
    rows = table(["Field", "Type", "Meaning"], field_rows(cls, names))
    return f"### {code(cls.__name__)}\n\n{flat(inspect.getdoc(cls))}\n\n{rows}"


def _exceptions() -> str:
    exported = [getattr(durable, name) for name in durable.__all__]
    errors = [each for each in exported if isinstance(each, type) and issubclass(each, BaseException)]
    rows = [[code(cls.__name__), code(cls.__bases__[0].__name__), flat(inspect.getdoc(cls))] for cls in errors]
    return f"## Exceptions\n\n{table(['Exception', 'Kind of', 'Raised for'], rows)}"
