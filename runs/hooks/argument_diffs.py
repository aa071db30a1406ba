"""The differences between two sets of arguments of a call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from runs.hooks.base import JSON


def argument_diff(before: Mapping[str, JSON] | str, after: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return the changed members: name → {"from": …, "to": …}. A missing side is omitted.

    Raises ValueError or TypeError if `after` is not JSON.
    """
    json.dumps(after, allow_nan=False)
    if not all(isinstance(name, str) for name in after):
        raise TypeError("a name is not a string")
    if isinstance(before, str):
        return cast("dict[str, JSON]", {"": {"from": before, "to": dict(after)}})
    names = [*before, *(name for name in after if name not in before)]
    changed = [
        name for name in names if name not in before or name not in after or not _same(before[name], after[name])
    ]
    return {name: _change(before, after, name) for name in changed}


def _change(before: Mapping[str, JSON], after: Mapping[str, JSON], name: str) -> JSON:
    change = {"from": before[name]} if name in before else {}
    return cast("JSON", change | ({"to": after[name]} if name in after else {}))


def _same(one: JSON, other: JSON) -> bool:
    """Compare as JSON: 1, 1.0 and true are different values."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
