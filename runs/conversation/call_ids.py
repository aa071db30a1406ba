"""The limit on calls of an answer, and call IDs, which match results to calls."""

from __future__ import annotations

from dataclasses import replace

from pydantic_ai.messages import ModelResponse, ToolCallPart

#: Leaves room in the column for the suffix of a repeated ID.
MAX_CALL_ID = 240
#: Calls of an answer that are kept. Kept calls beyond the run limit get an error as their result. A model that requests
#: thousands of calls is out of control, and each call would be stored and sent with every request.
MAX_KEPT = 256


def drop_excess(response: ModelResponse) -> int:
    """Remove the calls after the first `MAX_KEPT` from an answer. Return how many were removed."""
    places = [place for place, part in enumerate(response.parts) if isinstance(part, ToolCallPart)]
    dropped = set(places[MAX_KEPT:])
    if dropped:
        response.parts = [part for place, part in enumerate(response.parts) if place not in dropped]
    return len(dropped)


def make_usable(response: ModelResponse) -> None:
    """Make the call IDs of an answer unique and short enough for their column, by a suffix."""
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
