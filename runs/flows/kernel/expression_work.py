"""Evaluates JMESPath expressions and counts the work: visits of syntax tree nodes, and the work of functions.

Size limits alone are not enough: an expression can join a list with itself repeatedly, and compare, sort or print each
member, before any value becomes too large.
"""

from __future__ import annotations

from typing import Any

import jmespath
from jmespath import functions
from jmespath.visitor import TreeInterpreter
from pydantic import JsonValue

from agentops.base.limits.work_budget import WorkBudget
from runs.flows.kernel.sizes import is_larger

#: Maximum steps of all expressions in one decision about a node or an edge. A step takes about a microsecond.
MAX_STEPS = 2_000_000
#: Maximum CPU seconds, a second limit for work that the steps underestimate.
CPU_S = 5.0
#: The maximum length of a text that an expression makes of a value, in bytes of JSON.
MAX_TEXT = 1024 * 1024
#: Steps for building a list or an object, in addition to its members, because each takes memory.
BUILT = 8
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
    """JMESPath's functions.

    Each counts the values it reads; functions that make texts refuse values that are too large.
    """

    def __init__(self, budget: WorkBudget) -> None:
        self._budget = budget

    def call_function(self, function_name: str, resolved_args: list[Any]) -> Any:
        if function_name not in _FREE:
            for argument in resolved_args:
                self._spend_argument(function_name, argument)
        return super().call_function(function_name, resolved_args)

    def _spend_argument(self, function_name: str, argument: Any) -> None:
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
    """One evaluation. Raises `WorkExceeded` when its budget is spent."""

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
        self._budget.spend(BUILT)
        return super().visit_multi_select_list(node, value)

    def visit_multi_select_dict(self, node: Any, value: Any) -> Any:
        self._budget.spend(BUILT)
        return super().visit_multi_select_dict(node, value)


def spend_comparison(budget: WorkBudget, one: Any, two: Any) -> None:
    """Count the comparison of two values as if they were equal."""
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
