"""Bindings: `{{ path }}` in the texts of a node, replaced by values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pydantic import JsonValue

from agentops.base.fair_shares import WorkBudget, WorkExceeded
from runs.flows.kernel.expressions import ExpressionFailed, ExpressionTooExpensive, evaluate, new_budget
from runs.flows.kernel.flow_decisions import BINDING_FAILED, EXPRESSION_TOO_EXPENSIVE
from runs.flows.kernel.json_values import CHARACTERS_PER_STEP, is_larger, json_problem

#: The maximum size of a value made by bindings, in bytes of JSON; see also `runs.flows.kernel.work.MAX_OUTPUT`.
MAX_VALUE = 1024 * 1024
#: A binding ends at the first "}}" that no third brace follows, so `{{ {a: b}}}` is one binding.
_END = re.compile(r"\}\}(?!\})")


class BindingFailed(Exception):
    """A binding has no value. The message names it."""

    #: The error type of the node that contains the binding.
    error_type = BINDING_FAILED


class BindingTooExpensive(BindingFailed):
    """Computing the value exceeds the work that one decision may do."""

    error_type = EXPRESSION_TOO_EXPENSIVE


class _Binding(NamedTuple):
    """A binding in a text: where it begins, where it ends, and its expression."""

    start: int
    end: int
    expression: str


def expressions_in(text: str) -> list[str]:
    """Return the expressions of a text's bindings."""
    return [binding.expression for binding in _bindings_in(text)]


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


def resolve(value: JsonValue, scope: Mapping[str, JsonValue], budget: WorkBudget | None = None) -> JsonValue:
    """Return `value` with its bindings replaced.

    A text that consists of one binding becomes its value, of any type. Within a longer text, strings are inserted
    unchanged and other values as JSON. Raises `BindingFailed` for a missing value in a longer text, and for a value
    that is too large or cannot be stored. `budget` is charged for the work; by default, a new budget.
    """
    budget = budget or new_budget()
    try:
        resolved = _Resolution(scope, budget).value_of(value)
        if is_larger(resolved, MAX_VALUE, budget):
            raise BindingFailed(f"the value is larger than {MAX_VALUE} bytes")
        if problem := json_problem(resolved, budget):
            raise BindingFailed(f"the value {problem}")
    except WorkExceeded as error:
        raise BindingTooExpensive(f"the value of the bindings is too expensive: it {error}") from None
    return resolved


def _bindings_in(text: str) -> Iterator[_Binding]:
    """Yield the bindings of a text in order. Takes linear time, also with unclosed braces."""
    end = 0
    while (start := text.find("{{", end)) >= 0 and (closing := _END.search(text, start + 2)) is not None:
        end = closing.end()
        yield _Binding(start, end, text[start + 2 : closing.start()].strip())


class _Resolution:
    """One replacement of bindings."""

    def __init__(self, scope: Mapping[str, JsonValue], budget: WorkBudget) -> None:
        self._scope, self._budget = scope, budget
        #: Characters that values may still add to longer texts. Checked before the text is built, to limit the memory.
        self._left = MAX_VALUE

    def value_of(self, value: JsonValue) -> JsonValue:
        self._budget.spend()
        if isinstance(value, str):
            return self._of_text(value)
        if isinstance(value, dict):
            return {name: self.value_of(member) for name, member in value.items()}
        if isinstance(value, list):
            return [self.value_of(member) for member in value]
        return value

    def _of_text(self, text: str) -> JsonValue:
        """Return a text with its bindings replaced; the value itself if the text is one binding."""
        stripped = text.strip()
        first = next(_bindings_in(stripped), None)
        # A single binding keeps the type of its value.
        if first is not None and (first.start, first.end) == (0, len(stripped)):
            return self._value(first.expression)
        self._budget.spend(len(text) // CHARACTERS_PER_STEP)
        parts, end = [], 0
        for binding in _bindings_in(text):
            parts += [text[end : binding.start], self._as_text(binding.expression)]
            end = binding.end
        return "".join([*parts, text[end:]])

    def _as_text(self, expression: str) -> str:
        """Return the value of an expression, as it is inserted into a longer text. Raises `BindingFailed`."""
        value, binding = self._value(expression), f"{{{{ {expression[:200]} }}}}"
        if value is None:
            raise BindingFailed(f"{binding} has no value")
        if is_larger(value, MAX_VALUE, self._budget):
            raise BindingFailed(f"{binding} is larger than {MAX_VALUE} bytes")
        if not isinstance(value, str) and (problem := json_problem(value, self._budget)):
            raise BindingFailed(f"the value of {binding} {problem}")
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        self._left -= len(text)
        if self._left < 0:
            raise BindingFailed(f"the value is larger than {MAX_VALUE} bytes")
        return text

    def _value(self, expression: str) -> JsonValue:
        try:
            return evaluate(expression, self._scope, self._budget)
        except ExpressionTooExpensive as error:
            raise BindingTooExpensive(str(error)) from None
        except ExpressionFailed as error:
            raise BindingFailed(str(error)) from error
