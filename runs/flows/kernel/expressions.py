"""JMESPath expressions of flows: conditions, lists of forEach, and the paths of bindings.

An expression is data, not code. It runs on workers shared by all projects, so its length and its fan-out are limited,
and the work of its evaluation is counted: visits of syntax tree nodes, and the work of functions. Size limits alone are
not enough: an expression can join a list with itself repeatedly, and compare, sort or print each member, before any
value becomes too large.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import prod
from typing import Any

import jmespath
from jmespath import functions
from jmespath.exceptions import JMESPathError, JMESPathTypeError
from jmespath.visitor import TreeInterpreter
from pydantic import JsonValue

from agentops.base.fair_shares import WorkBudget, WorkExceeded
from runs.flows.kernel.json_values import is_larger

#: Maximum steps of all expressions in one decision about a node or an edge. A step takes about a microsecond.
MAX_STEPS = 2_000_000
#: Maximum CPU seconds, a second limit for work that the steps underestimate.
CPU_S = 5.0
#: The maximum length of a text that an expression makes of a value, in bytes of JSON.
MAX_TEXT = 1024 * 1024
#: Steps that a new list or object costs in addition to its members, because it takes memory.
CONTAINER_STEPS = 8
#: Characters that a function reads or writes in one step.
CHARACTERS_PER_STEP = 64
#: Characters that are compared in one step.
COMPARED_PER_STEP = 1_024
#: Functions that take constant time.
_FREE = frozenset({"abs", "ceil", "ends_with", "floor", "length", "not_null", "starts_with", "to_array", "type"})
_SORTING = frozenset({"max_by", "min_by", "sort", "sort_by"})


class ExpressionFailed(Exception):
    """The expression does not fit the values, such as `length` of a missing value."""


class ExpressionTooExpensive(ExpressionFailed):
    """Evaluating the expression exceeds the work that one decision may do."""


def new_budget() -> WorkBudget:
    """Return the budget of one decision."""
    return WorkBudget(MAX_STEPS, "steps", cpu_s=CPU_S)


class _CountedFunctions(functions.Functions):
    """JMESPath's functions, which charge the budget for the values that they read.

    Functions that produce texts refuse values that are too large.
    """

    def __init__(self, budget: WorkBudget) -> None:
        self._budget = budget

    def call_function(self, function_name: str, resolved_args: list[Any]) -> Any:
        if function_name not in _FREE:
            for argument in resolved_args:
                self._spend_argument(function_name, argument)
        return super().call_function(function_name, resolved_args)

    def _spend_argument(self, function_name: str, argument: Any) -> None:
        """Charge the budget for reading an argument of a function."""
        if isinstance(argument, str):
            self._budget.spend(len(argument) // CHARACTERS_PER_STEP)
        elif isinstance(argument, list | dict):
            self._budget.spend(len(argument))
            if function_name in _SORTING and isinstance(argument, list):
                texts = sum(len(each) for each in argument if isinstance(each, str))
                self._budget.spend((len(argument) + texts // COMPARED_PER_STEP) * len(argument).bit_length())

    @functions.signature({"types": ["array", "string"]}, {"types": []})
    def _func_contains(self, subject: list[JsonValue] | str, search: JsonValue) -> Any:
        if isinstance(subject, list):
            for member in subject:
                spend_comparison(self._budget, member, search)
        return super()._func_contains(subject, search)

    @functions.signature({"types": []})
    def _func_to_string(self, value: Any) -> Any:
        if is_larger(value, MAX_TEXT, self._budget):
            raise ExpressionFailed(f"to_string: the value is larger than {MAX_TEXT} bytes")
        return super()._func_to_string(value)

    @functions.signature({"types": ["string"]}, {"types": ["array-string"]})
    def _func_join(self, separator: str, texts: list[JsonValue]) -> Any:
        if len(separator) * len(texts) > MAX_TEXT or is_larger(texts, MAX_TEXT, self._budget):
            raise ExpressionFailed(f"join: the text is larger than {MAX_TEXT} bytes")
        return super()._func_join(separator, texts)


class CountedInterpreter(TreeInterpreter):
    """Evaluates one expression. Raises `WorkExceeded` when its budget is spent."""

    def __init__(self, budget: WorkBudget) -> None:
        super().__init__(jmespath.Options(custom_functions=_CountedFunctions(budget)))
        self._budget = budget

    def visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
        self._budget.spend()
        return super().visit(node, *args, **kwargs)

    def visit_comparator(self, node: Any, value: Any) -> Any:
        # The operands are already values. Literal nodes keep them from being evaluated again.
        operands = [self.visit(child, value) for child in node["children"]]
        spend_comparison(self._budget, *operands)
        literals = [{"type": "literal", "value": operand, "children": []} for operand in operands]
        return super().visit_comparator({**node, "children": literals}, value)

    def visit_flatten(self, node: Any, value: Any) -> Any:
        base = self.visit(node["children"][0], value)
        if not isinstance(base, list):
            return None
        self._budget.spend(sum(len(member) if isinstance(member, list) else 1 for member in base))
        return [each for member in base for each in (member if isinstance(member, list) else [member])]

    def visit_slice(self, node: Any, value: Any) -> Any:
        self._budget.spend(len(value) if isinstance(value, list) else 0)
        return super().visit_slice(node, value)

    def visit_multi_select_list(self, node: Any, value: Any) -> Any:
        self._budget.spend(CONTAINER_STEPS)
        return super().visit_multi_select_list(node, value)

    def visit_multi_select_dict(self, node: Any, value: Any) -> Any:
        self._budget.spend(CONTAINER_STEPS)
        return super().visit_multi_select_dict(node, value)


def spend_comparison(budget: WorkBudget, one: Any, two: Any) -> None:
    """Charge the budget for comparing two values, as if they were equal: the maximum that a comparison can take."""
    waiting = [(one, two)]
    while waiting:
        one, two = waiting.pop()
        if one is two:
            budget.spend()
        elif isinstance(one, str) and isinstance(two, str):
            budget.spend(1 + min(len(one), len(two)) // COMPARED_PER_STEP)
        elif isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
            budget.spend(1 + len(one))
            waiting += zip(one, two, strict=True)
        elif isinstance(one, dict) and isinstance(two, dict) and len(one) == len(two):
            budget.spend(1 + len(one))
            waiting += [(value, two[name]) for name, value in one.items() if name in two]
        else:
            budget.spend()


#: The maximum characters of an expression.
MAX_LENGTH = 1_000
#: The maximum product of the sizes of all lists and objects that an expression builds.
MAX_FAN_OUT = 1_000

_BUILT = ("multi_select_list", "multi_select_dict")
#: Nodes of the syntax tree that evaluate only their first child in the scope, and the others in the first one's value.
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
        raise InvalidExpression(f"an expression may build at most {MAX_FAN_OUT} values from one value")
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
        # The error's own text contains the value, which may be far larger than any stored value.
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
    """Return the names that an expression reads from its scope, each with the field that it reads of that value.

    The field is None if the expression reads the whole value, or does not name a field.
    """
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
    """Return the field that the first of these syntax nodes reads first; None if that is not a field."""
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
