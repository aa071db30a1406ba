"""JMESPath expressions of flows: conditions, lists of forEach, and the paths of bindings.

An expression is data, not code. Its length, its fan-out and the work of its evaluation are limited, because it runs on
workers shared by all projects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import prod
from typing import Any

import jmespath
from jmespath.exceptions import JMESPathError, JMESPathTypeError
from pydantic import JsonValue

from agentops.base.limits.work_budget import WorkBudget, WorkExceeded
from runs.flows.kernel.expression_work import CountedInterpreter, ExpressionFailed, ExpressionTooExpensive, new_budget

MAX_LENGTH = 1_000
#: The maximum product of the sizes of all lists and objects that an expression builds.
MAX_FAN_OUT = 1_000

_BUILT = ("multi_select_list", "multi_select_dict")
#: Nodes of the syntax tree that evaluate later children in the value of the first child instead of the scope.
_NARROWING = frozenset(
    {"subexpression", "index_expression", "projection", "value_projection", "filter_projection", "flatten", "pipe"}
)


class InvalidExpression(ValueError):
    """The expression is invalid. The message is the reason."""


@lru_cache(maxsize=4096)
def compiled(text: str) -> Any:
    """Return the parsed expression. Raises `InvalidExpression`."""
    if len(text) > MAX_LENGTH:
        raise InvalidExpression(f"an expression has at most {MAX_LENGTH} characters, this one has {len(text)}")
    if not text.strip():
        raise InvalidExpression("an expression must not be empty")
    try:
        expression = jmespath.compile(text)
    except (JMESPathError, ValueError, RecursionError) as error:
        first_line = str(error).strip().splitlines()[:1]
        reason = first_line[0] if first_line else "nested too deeply"
        raise InvalidExpression(f"not a JMESPath expression: {reason}") from None
    if prod(len(node["children"]) for node in _walk(expression.parsed) if node["type"] in _BUILT) > MAX_FAN_OUT:
        raise InvalidExpression(f"an expression builds at most {MAX_FAN_OUT} values of one")
    return expression


def evaluate(text: str, scope: Mapping[str, JsonValue], budget: WorkBudget | None = None) -> JsonValue:
    """Return the value of an expression; None if a path does not exist. Raises `ExpressionFailed`.

    `budget` is charged for the work; by default, a new budget.
    """
    try:
        parsed = compiled(text).parsed
        value: JsonValue = CountedInterpreter(budget or new_budget()).visit(parsed, scope)
    except WorkExceeded as error:
        raise ExpressionTooExpensive(f"{text[:100]!r} is too expensive: it {error}") from None
    except JMESPathTypeError as error:
        # Do not use the error's text. It contains the value, which may be far larger than any stored value.
        expected = ", ".join(error.expected_types)
        text_of_error = f"{error.function_name}() takes {expected}, not {error.actual_type}"
        raise ExpressionFailed(f"{text[:100]!r}: {text_of_error}") from None
    except (JMESPathError, InvalidExpression, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise ExpressionFailed(f"{text[:100]!r}: {str(error).strip()[:300]}") from error
    return value


def is_true(value: JsonValue) -> bool:
    """Return whether a condition holds. In JMESPath null, false and empty values are false, and 0 is true."""
    return not (value is None or value is False or value in ("", [], {}))


def paths(text: str) -> list[tuple[str, str | None]]:
    """Return the names that an expression reads from its scope, each with the field below it if that is fixed."""
    return list(_paths(compiled(text).parsed))


def _paths(node: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    kind, children = node["type"], node["children"]
    if kind == "field":
        yield node["value"], None
    elif kind == "subexpression" and children[0]["type"] == "field":
        yield children[0]["value"], _first_field(children[1:])
    elif kind in _NARROWING:
        yield from _paths(children[0])
    elif kind not in ("expref", "literal"):
        for child in children:
            if isinstance(child, Mapping):
                yield from _paths(child)


def _first_field(nodes: list[Mapping[str, Any]]) -> str | None:
    node = nodes[0] if nodes else None
    while node is not None and node["type"] in _NARROWING:
        node = node["children"][0]
    return node["value"] if node is not None and node["type"] == "field" else None


def _walk(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting += [child for child in current["children"] if isinstance(child, Mapping)]
