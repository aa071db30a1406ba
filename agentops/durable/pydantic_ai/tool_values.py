"""Results of tools in the journal: ordinary ones as the value itself, which pages then show."""

from __future__ import annotations

from typing import Any

#: A stored object with only this member contains the library's own form of a result, such as a request to try again.
WRAPPED = "pydantic_ai"
_RETURNED = "tool_return"
_FILES = "content_file_digests"


def to_stored(payload: Any) -> Any:
    """Return the value to store for a tool result in the library's JSON form."""
    if not isinstance(payload, dict) or payload.get("kind") != _RETURNED:
        return {WRAPPED: payload}
    value = payload.get("result")
    further = {name for name, member in payload.items() if name not in ("kind", "result") and member}
    is_ambiguous = isinstance(value, dict) and value.keys() & {WRAPPED, "kind"}
    return {WRAPPED: payload} if further or is_ambiguous else value


def from_stored(value: Any) -> Any:
    """Return the library's JSON form of a stored value. A person may have given a text as the value."""
    if isinstance(value, dict) and value.keys() == {WRAPPED}:
        return value[WRAPPED]
    returned = {"kind": _RETURNED, "result": value}
    return returned | {_FILES: []} if isinstance(value, dict | list) else returned
