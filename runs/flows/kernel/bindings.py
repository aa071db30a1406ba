"""Bindings: `{{ path }}` in the texts of a node, replaced by values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from runs.flows.kernel.expressions import ExpressionFailed, evaluate
from runs.flows.kernel.sizes import is_larger, json_problem

#: The largest value that bindings may make, in bytes of JSON; see also `runs.flows.kernel.work.MAX_OUTPUT`.
MAX_VALUE = 1024 * 1024
#: The first "}}" that no third brace follows ends a binding, so that `{{ {a: b}}}` is one.
_BINDING = re.compile(r"\{\{((?:(?!\}\}(?!\})).)*)\}\}", re.DOTALL)


class BindingFailed(Exception):
    """A binding has no value. The message names it."""


def expressions_in(text: str) -> list[str]:
    """Return the expressions of a text's bindings."""
    return [match.strip() for match in _BINDING.findall(text)]


def texts_in(value: JsonValue, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the texts in a value, each with its path."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for name, member in value.items():
            yield from texts_in(member, (*path, name))
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from texts_in(member, (*path, index))


def resolve(value: JsonValue, scope: Mapping[str, JsonValue]) -> JsonValue:
    """Return `value` with its bindings replaced.

    A text that is one binding becomes its value, of any type. In a longer text, values are written as text, and those
    that are no texts as JSON. Raises `BindingFailed` for a missing value in a longer text, and for a value that is too
    large or cannot be stored.
    """
    resolved = _resolve(value, scope)
    if is_larger(resolved, MAX_VALUE):
        raise BindingFailed(f"the value is larger than {MAX_VALUE} bytes")
    if problem := json_problem(resolved):
        raise BindingFailed(f"the value {problem}")
    return resolved


def _resolve(value: JsonValue, scope: Mapping[str, JsonValue]) -> JsonValue:
    if isinstance(value, str):
        return _resolve_text(value, scope)
    if isinstance(value, dict):
        return {name: _resolve(member, scope) for name, member in value.items()}
    if isinstance(value, list):
        return [_resolve(member, scope) for member in value]
    return value


def _resolve_text(text: str, scope: Mapping[str, JsonValue]) -> JsonValue:
    whole = _BINDING.fullmatch(text.strip())
    if whole is not None:
        return _value(whole[1].strip(), scope)
    return _BINDING.sub(lambda match: _as_text(match[1].strip(), scope), text)


def _as_text(expression: str, scope: Mapping[str, JsonValue]) -> str:
    value = _value(expression, scope)
    if value is None:
        raise BindingFailed(f"{{{{ {expression[:200]} }}}} has no value")
    if is_larger(value, MAX_VALUE):
        raise BindingFailed(f"{{{{ {expression[:200]} }}}} is larger than {MAX_VALUE} bytes")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _value(expression: str, scope: Mapping[str, JsonValue]) -> JsonValue:
    try:
        return evaluate(expression, scope)
    except ExpressionFailed as error:
        raise BindingFailed(str(error)) from error
