"""Patches of a flow's state: values at dotted paths, which are set, or merged into objects."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue

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
        place = state
        for name in parents:
            below = place.get(name)
            if not isinstance(below, dict):
                below = place[name] = {}
            place = below
        place[last] = value
