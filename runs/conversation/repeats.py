"""The repeat guard: the how many-th time in a row the model asks for the same call.

Counted over the conversation, which is stored and continues in a resumed run, so neither a restart nor a resume
forgets. A user turn restarts the count, because it may have asked for the repeat; the "continue" of a resume without a
message does not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from pydantic_ai.messages import ModelMessage, ModelRequest, ToolCallPart, UserPromptPart

from runs.conversation.message_text import CONTINUE
from runs.providers import messages

#: From this call on the model is warned with each result.
WARN_AT = 5
#: This call is not run: it ends the run.
STOP_AT = 10


def streak(newest_first: Iterable[ModelMessage], call_id: str) -> int:
    """How many identical calls in a row end with this one of the newest answer; nobody needs to know of more than
    `STOP_AT`. It looks back no further than to the first call that differs."""
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
    """What the model is told with the result."""
    left = STOP_AT - length
    more = "One more ends" if left == 1 else f"{left} more end"
    return (
        f"[Warning: this is call {length} in a row with the same tool and the same arguments. "
        f"{more} the run. Do something else, or say what is missing.]"
    )


def _call(part: ToolCallPart) -> tuple[str, str]:
    """What two identical calls have in common, however their arguments were written down."""
    arguments = part.args
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
        return part.tool_name, messages.canonical(value or {})
    except (ValueError, RecursionError):
        return part.tool_name, str(arguments)
