"""The repeat guard: counts identical tool calls in a row.

The count comes from the stored conversation, which a resumed run continues, so neither a restart nor a resume resets
it. A user message resets it, because it may have requested the repeat. The "continue" of a resume without a message
does not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from pydantic_ai.messages import ModelMessage, ModelRequest, ToolCallPart, UserPromptPart

from runs.conversation.message_text import CONTINUE
from runs.providers import messages

#: From this call on, each result carries a warning.
WARN_AT = 5
#: This call is not run; it stops the run.
STOP_AT = 10


def streak(newest_first: Iterable[ModelMessage], call_id: str) -> int:
    """Return the number of consecutive identical calls up to this call of the newest answer, at most `STOP_AT`.

    Reads back only to the first call that differs.
    """
    repeated: tuple[str, str] | None = None
    length = 0
    for message in newest_first:
        if isinstance(message, ModelRequest):
            if length and any(isinstance(part, UserPromptPart) and part.content != CONTINUE for part in message.parts):
                return length
            continue
        for part in reversed(message.tool_calls):
            if repeated is None:
                repeated = _call(part) if part.tool_call_id == call_id else None
            elif part.tool_name != repeated[0] or _call(part) != repeated:
                return length
            length += repeated is not None
            if length == STOP_AT:
                return length
    return length


def warning(length: int) -> str:
    """Return the warning that the model gets with the result."""
    left_count = STOP_AT - length
    more = "One more call ends" if left_count == 1 else f"{left_count} more calls end"
    return (
        f"[Warning: this is call {length} in a row with the same tool and the same arguments. "
        f"{more} the run. Do something else, or say what is missing.]"
    )


def _call(part: ToolCallPart) -> tuple[str, str]:
    """Return a key that identical calls share, independent of how their arguments are written."""
    arguments = part.args
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
        return part.tool_name, messages.canonical(value or {})
    except (ValueError, RecursionError):
        return part.tool_name, str(arguments)
