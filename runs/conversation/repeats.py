"""The repeat guard: counts identical tool calls in a row.

The count comes from the stored conversation, which a resumed run continues, so neither a restart nor a resume resets
it. A user message resets it, because the user may have asked for the repetition. The "continue" of a resume without a
message does not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from pydantic_ai.messages import ModelMessage, ModelRequest, ToolCallPart, UserPromptPart

from runs.conversation.transcript import CONTINUE
from runs.providers import messages

#: From this call on, each result carries a warning.
WARN_AT = 5
#: This call is not run; it stops the run.
STOP_AT = 10


def streak(newest_first: Iterable[ModelMessage], call_id: str) -> int:
    """Return how many identical calls in a row end with this call of the newest answer, at most `STOP_AT`.

    Reads the messages only back to the first call that differs.
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
                repeated = _call_key(part) if part.tool_call_id == call_id else None
            elif part.tool_name != repeated[0] or _call_key(part) != repeated:
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


def _call_key(part: ToolCallPart) -> tuple[str, str]:
    """Return the tool and the arguments in canonical form, which are equal for identical calls."""
    arguments = part.args
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
        return part.tool_name, messages.canonical(value or {})
    except (ValueError, RecursionError):
        return part.tool_name, str(arguments)
