"""Interrupts: the end of an AG-UI run that needs a person to answer, decide or resume before it continues.

The protocol defines the reasons `tool_call` and `input_required`; clients have a specific dialog for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from timeline import events
from timeline.dialects.ag_ui_blocks import Message
from timeline.events import EventType
from timeline.models import Event

TOOL_CALL, INPUT_REQUIRED = "tool_call", "input_required"
#: JSON Schemas of the accepted answers.
APPROVAL_SCHEMA: Message = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "editedArgs": {"type": "object", "description": "Replaces all arguments of the call."},
        "message": {"type": "string", "description": "What the model is told about a denial."},
        "always": {"type": "boolean", "description": "Approves all later calls of this tool in this run, too."},
    },
    "required": ["approved"],
}
OUTCOME_SCHEMA: Message = {
    "type": "object",
    "properties": {
        "choice": {"enum": ["done", "failed", "retry"]},
        "text": {"type": "string", "description": "The output of the call, or its error."},
    },
    "required": ["choice"],
}
TEXT_SCHEMA: Message = {"type": "string"}


def interrupt(event: Event, call: Mapping[str, Any], approval: Mapping[str, Any]) -> Message:
    """Return the interrupt with which an event ends the AG-UI run.

    `call` and `approval` are the stored data of the call that the event refers to; empty if there is no call.
    """
    reason = event.payload.get("reason") if event.type == EventType.RUN_WAITING else None
    made = _MAKERS.get(str(reason), _other)(event, call, approval)
    return {"id": f"{event.log_id}.{event.seq}", "message": events.describe(event.type, event.payload), **made}


def _approval(event: Event, call: Mapping[str, Any], approval: Mapping[str, Any]) -> Message:
    name, why = approval.get("toolName") or call.get("toolName") or "a tool", approval.get("reason")
    made: Message = {"reason": TOOL_CALL, "message": f"Approve the call of {name}?" + (f" {why}" if why else "")}
    # A call of an external runner has no row, so it cannot be approved here.
    if event.ref_id is None:
        return made
    made |= {"toolCallId": str(event.ref_id), "responseSchema": APPROVAL_SCHEMA}
    # AG-UI times are ISO 8601.
    return made | ({"expiresAt": str(event.payload["until"])} if event.payload.get("until") else {})


def _question(event: Event, call: Mapping[str, Any], approval: Mapping[str, Any]) -> Message:
    given = call.get("toolInput")
    whole = given.get("question") if isinstance(given, dict) else None
    question = whole if isinstance(whole, str) else event.payload.get("question")
    made: Message = {"reason": INPUT_REQUIRED, "responseSchema": TEXT_SCHEMA}
    made["metadata"] = {"choices": event.payload.get("choices") or []}
    return made | ({"message": question} if question else {})


def _unknown_outcome(event: Event, call: Mapping[str, Any], approval: Mapping[str, Any]) -> Message:
    name = call.get("toolName") or "a tool"
    made: Message = {"reason": "agentops:unknown_tool", "message": f"The outcome of {name} is unknown. What happened?"}
    return made | ({"toolCallId": str(event.ref_id), "responseSchema": OUTCOME_SCHEMA} if event.ref_id else {})


def _other(event: Event, call: Mapping[str, Any], approval: Mapping[str, Any]) -> Message:
    """Return the interrupt of a paused run, which is resumed with a message or without."""
    return {"reason": f"agentops:{event.payload['reason']}", "responseSchema": TEXT_SCHEMA}


_MAKERS = {"approval": _approval, "input": _question, "unknown_tool": _unknown_outcome}
