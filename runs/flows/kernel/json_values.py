"""JSON values of flows: their size, whether they can be stored, and changes of a flow's state at dotted paths."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from pydantic import JsonValue

from agentops.base.fair_shares import WorkBudget

#: The maximum depth of lists and objects in a value. Snapshots and events, which contain it, have a few more levels.
MAX_DEPTH = 100
#: The maximum bits of a whole number. Python converts a number to text only if it has at most 4,300 digits.
MAX_BITS = 14_000
#: Characters that are read in one step.
CHARACTERS_PER_STEP = 512
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def is_larger(value: JsonValue, limit: int, budget: WorkBudget | None = None) -> bool:
    """Return whether a value has more than about `limit` bytes as JSON.

    The value is not serialized: it may refer to the same list so often that serializing it would never end. `budget`
    is charged for the work.
    """
    size, waiting = 0, [value]
    while waiting:
        current = waiting.pop()
        if budget is not None:
            budget.spend(1 + (len(current) // CHARACTERS_PER_STEP if isinstance(current, str) else 0))
        size += 2 + (len(current) if isinstance(current, str) else 0)
        if size > limit:
            return True
        if isinstance(current, dict):
            size += sum(len(name) + 4 for name in current)
            waiting += current.values()
        elif isinstance(current, list):
            waiting += current
    return False


def json_problem(value: JsonValue, budget: WorkBudget | None = None) -> str:
    """Return why the value of an expression cannot be stored as JSON, as the end of "the value ..."; empty if it can.

    The value must not be too large: see `is_larger`. Literals and functions of JMESPath can produce NaN, infinity, any
    character and numbers of any size, and a loop may nest its own output. `budget` is charged for the work.
    """
    waiting = [(value, 0)]
    while waiting:
        current, depth = waiting.pop()
        if budget is not None:
            budget.spend(1 + (len(current) // CHARACTERS_PER_STEP if isinstance(current, str) else 0))
        if isinstance(current, float) and not math.isfinite(current):
            return "contains NaN or infinity"
        if isinstance(current, int) and current.bit_length() > MAX_BITS:
            return "contains a number of more than 4,200 digits"
        if isinstance(current, str) and _UNSTORABLE.search(current):
            return "contains a NUL character or an unpaired surrogate"
        if isinstance(current, dict | list):
            if depth == MAX_DEPTH:
                return f"is nested deeper than {MAX_DEPTH} levels"
            members = current.values() if isinstance(current, dict) else current
            waiting += [(member, depth + 1) for member in members]
            if isinstance(current, dict):
                waiting += [(name, depth + 1) for name in current]
    return ""


State = dict[str, JsonValue]


def merged(state: State, path: str, value: JsonValue) -> JsonValue:
    """Return the value that `merge` leaves at a path: the union of two objects, otherwise `value`."""
    current: JsonValue = state
    for name in path.split("."):
        current = current.get(name) if isinstance(current, dict) else None
    if isinstance(current, dict) and isinstance(value, dict):
        return {**current, **value}
    return value


def put(state: State, values: Mapping[str, JsonValue]) -> None:
    """Set values at their dotted paths. Replaces values on a path that are not objects."""
    for path, value in values.items():
        *parents, last = path.split(".")
        target = state
        for name in parents:
            child = target.get(name)
            if not isinstance(child, dict):
                child = target[name] = {}
            target = child
        target[last] = value
