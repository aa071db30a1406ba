"""Tool calls in AG-UI: the call when it starts, its result when it ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from timeline.dialects.ag_ui_blocks import Message
from timeline.events import EventType
from timeline.models import Event


def tool_messages(event: Event, row: Mapping[str, Any], parent: str | None, *, is_shown: bool) -> list[Message]:
    """Return the call when it first starts, and its result when it ends.

    `row` is the stored data of the call. `parent` is the ID of the assistant message with the call. `is_shown`: the
    call was already sent when its approval was requested, possibly in an earlier AG-UI run.
    """
    call_id = _call_id(event)
    if event.type == EventType.TOOL_START:
        return [] if event.payload.get("attempt") or is_shown else _call(event, row, call_id, parent)
    never_started = _call(event, row, call_id, parent) if row.get("starts") == 0 and not is_shown else []
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


def requested_call(event: Event, approval: Mapping[str, Any], parent: str | None) -> list[Message]:
    """Return a call that needs approval, with the exact arguments that it would run with."""
    return _call(event, approval, _call_id(event), parent) if approval else []


def _call_id(event: Event) -> str:
    return str(event.ref_id or event.payload["call_id"])


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
