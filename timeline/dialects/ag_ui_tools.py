"""Tool calls in AG-UI: the call when it starts, its result when it ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from timeline.dialects.ag_ui_blocks import Message
from timeline.dialects.agent_output import WholeTexts
from timeline.events import EventType
from timeline.models import Event


def tool_messages(event: Event, whole: WholeTexts, parent: str | None) -> list[Message]:
    """Return the call when it starts, unless it is repeated, and its result when it ends.

    `parent` is the ID of the assistant message that holds the call.
    """
    row = whole.calls.get(event.ref_id, {}) if event.ref_id else {}
    call_id = str(event.ref_id or event.payload["call_id"])
    if event.type == EventType.TOOL_START:
        return [] if event.payload.get("attempt") else _call(event, row, call_id, parent)
    never_started = _call(event, row, call_id, parent) if row.get("starts") == 0 else []
    result = {
        "type": "TOOL_CALL_RESULT",
        "messageId": f"{call_id}.result",
        "toolCallId": call_id,
        "content": _output(event, row),
        "role": "tool",
        "metadata": {
            "status": event.payload.get("status") or ("error" if event.payload.get("error") else "completed"),
            "durationMs": event.payload.get("duration_ms"),
        },
    }
    return [*never_started, result]


def _call(event: Event, row: Mapping[str, Any], call_id: str, parent: str | None) -> list[Message]:
    start: Message = {
        "type": "TOOL_CALL_START",
        "toolCallId": call_id,
        "toolCallName": event.payload.get("tool_name") or row.get("toolName") or "",
    }
    arguments = row.get("toolInput", event.payload.get("arguments"))
    delta = arguments if isinstance(arguments, str) else _as_text({} if arguments is None else arguments)
    return [
        start | ({"parentMessageId": parent} if parent else {}),
        {"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": delta},
        {"type": "TOOL_CALL_END", "toolCallId": call_id},
    ]


def _output(event: Event, row: Mapping[str, Any]) -> str:
    output = row.get("toolOutput")
    for name in ("error", "output", "preview"):
        if output is None:
            output = event.payload.get(name)
    return "" if output is None else output if isinstance(output, str) else _as_text(output)


def _as_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
