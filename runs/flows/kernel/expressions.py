"""JMESPath expressions of flows: conditions, lists of forEach, and the paths of bindings.

An expression is data, never code. Its length and what it can multiply are limited, because it runs on a worker that
serves other projects too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import prod
from typing import Any

import jmespath
from jmespath import functions
from jmespath.exceptions import JMESPathError
from jmespath.visitor import TreeInterpreter
from pydantic import JsonValue

from runs.flows.kernel.sizes import is_larger

MAX_LENGTH = 1_000
#: How many values the lists and objects that an expression builds may multiply to.
MAX_FAN_OUT = 1_000
#: How many members the lists and objects that an evaluation builds may have in all, and for how many each counts too.
MAX_MEMBERS, OVERHEAD = 2_000_000, 8
#: The longest text that an expression may make of a value, in bytes of JSON.
MAX_TEXT = 1024 * 1024

_BUILT = ("multi_select_list", "multi_select_dict")
#: Nodes of the syntax tree whose later children are evaluated in the value of the first one, not in the scope.
_NARROWING = frozenset(
    {"subexpression", "index_expression", "projection", "value_projection", "filter_projection", "flatten", "pipe"}
)


class InvalidExpression(ValueError):
    """The expression cannot be used. The message says why."""


class ExpressionFailed(Exception):
    """The expression does not fit the values, such as `length` of a missing one."""


class _LimitedFunctions(functions.Functions):
    """JMESPath's functions. Those that make texts refuse values that are too large."""

    @functions.signature({"types": []})
    def _func_to_string(self, value: Any) -> Any:
        if is_larger(value, MAX_TEXT):
            raise ExpressionFailed(f"to_string: the value is larger than {MAX_TEXT} bytes")
        return super()._func_to_string(value)

    @functions.signature({"types": ["string"]}, {"types": ["array-string"]})
    def _func_join(self, separator: str, texts: list[JsonValue]) -> Any:
        if len(separator) * len(texts) > MAX_TEXT or is_larger(texts, MAX_TEXT):
            raise ExpressionFailed(f"join: the text is larger than {MAX_TEXT} bytes")
        return super()._func_join(separator, texts)


_OPTIONS = jmespath.Options(custom_functions=_LimitedFunctions())


class _LimitedInterpreter(TreeInterpreter):
    """One evaluation. What it builds is counted, because lists can be joined again and again before one is too large
    to be used."""

    def __init__(self) -> None:
        super().__init__(_OPTIONS)
        self._left = MAX_MEMBERS

    def visit_flatten(self, node: Any, value: Any) -> Any:
        base = self.visit(node["children"][0], value)
        if not isinstance(base, list):
            return None
        self._count(sum(len(member) if isinstance(member, list) else 1 for member in base))
        return [each for member in base for each in (member if isinstance(member, list) else [member])]

    def visit_multi_select_list(self, node: Any, value: Any) -> Any:
        self._count(OVERHEAD + len(node["children"]))
        return super().visit_multi_select_list(node, value)

    def visit_multi_select_dict(self, node: Any, value: Any) -> Any:
        self._count(OVERHEAD + len(node["children"]))
        return super().visit_multi_select_dict(node, value)

    def _count(self, members: int) -> None:
        self._left -= members
        if self._left < 0:
            raise ExpressionFailed(f"it builds lists and objects of more than {MAX_MEMBERS} members")


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


def evaluate(text: str, scope: Mapping[str, JsonValue]) -> JsonValue:
    """Return the value of an expression; None for a path that does not exist. Raises `ExpressionFailed`."""
    try:
        value: JsonValue = _LimitedInterpreter().visit(compiled(text).parsed, scope)
    except (JMESPathError, InvalidExpression, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise ExpressionFailed(f"{text[:100]!r}: {str(error).strip()[:300]}") from error
    return value


def is_true(value: JsonValue) -> bool:
    """Return whether a condition holds: JMESPath takes null, false and empty values for false, and 0 for true."""
    return not (value is None or value is False or value in ("", [], {}))


def paths(text: str) -> list[tuple[str, str | None]]:
    """Return what an expression reads of its scope: the name, and the field below it if that is fixed."""
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
