"""The IDs of the calls of an answer, by which their results are matched."""

from __future__ import annotations

from dataclasses import replace

from pydantic_ai.messages import ModelResponse, ToolCallPart

#: Leaves room in the column for the suffix of a repeated ID.
MAX_CALL_ID = 240


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
