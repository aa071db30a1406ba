"""The limit on calls of an answer, and call IDs, which match results to calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic_ai.messages import ModelResponse, ToolCallPart

#: Maximum characters of an ID, without the suffix that makes a repeated ID unique.
MAX_CALL_ID = 240
#: The prefix of the ID of a call that no model has requested: it is a step of a remote run (runs.remote), whose key
#: follows. Such a call is the only part of its message.
STEP = "step:"
#: Maximum number of calls of an answer that are kept, although fewer are run. A model that requests thousands of calls
#: is out of control, and each call would be stored, and sent again with every request.
MAX_KEPT = 256


def own_call_id(key: str) -> str:
    """Return the ID of the call of a step that no answer of a model requests."""
    return f"{STEP}{key}"[:256]


def is_copy(call_id: str, *, of: str) -> bool:
    """Whether an ID is this one, or a copy of it that `make_usable` has marked."""
    base, _, number = call_id.rpartition("-")
    return call_id == of or (base == of and number.isdecimal())


def is_step(content: Any) -> bool:
    """Whether a stored message is a step of a remote run that no model has requested, or the result of such a step."""
    parts = content.get("parts") if isinstance(content, dict) else None
    if not isinstance(parts, list) or len(parts) != 1 or not isinstance(parts[0], dict):
        return False
    return str(parts[0].get("tool_call_id") or "").startswith(STEP)


def drop_excess(response: ModelResponse) -> int:
    """Remove the calls after the first `MAX_KEPT` from an answer. Returns how many were removed."""
    indexes = [index for index, part in enumerate(response.parts) if isinstance(part, ToolCallPart)]
    dropped = set(indexes[MAX_KEPT:])
    if dropped:
        response.parts = [part for index, part in enumerate(response.parts) if index not in dropped]
    return len(dropped)


def make_usable(response: ModelResponse) -> None:
    """Shorten the call IDs of an answer to the length of their column, and add a suffix to repeated ones."""
    call_ids: set[str] = set()
    copies: dict[str, int] = {}
    parts = list(response.parts)
    for index, part in enumerate(parts):
        if not isinstance(part, ToolCallPart):
            continue
        base = part.tool_call_id[:MAX_CALL_ID] or "call"
        call_id = base
        while call_id in call_ids:
            copies[base] = copies.get(base, 1) + 1
            call_id = f"{base}-{copies[base]}"
        call_ids.add(call_id)
        if call_id != part.tool_call_id:
            parts[index] = replace(part, tool_call_id=call_id)
            response.parts = parts
