"""Tool calls in AG-UI (the call when it starts, its result when it ends), and interrupts.

An interrupt is the end of an AG-UI run that needs a person to answer, decide or resume before it continues. The
protocol defines the reasons `tool_call` and `input_required`; clients have a specific dialog for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from timeline import events
from timeline.ag_ui_state import Message
from timeline.agent_dialect_output import as_text
from timeline.events import EventType
from timeline.models import Event


def tool_messages(event: Event, row: Mapping[str, Any], parent: str | None, *, is_shown: bool) -> list[Message]:
    """Return the call when it first starts, and its result when it ends.

    `row` is the stored data of the call. `parent` is the ID of the assistant message with the call. `is_shown`: the
    call was already sent when its approval was requested, possibly in an earlier AG-UI run.
    """
    call_id = _call_id(event)
    if event.type == EventType.TOOL_START:
        return [] if event.payload.get("attempt") or is_shown else _call_messages(event, row, call_id, parent)
    # A call that never started, such as a denied one, is sent together with its result.
    call = _call_messages(event, row, call_id, parent) if row.get("starts") == 0 and not is_shown else []
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
    return [*call, result]


def requested_call(event: Event, approval: Mapping[str, Any], parent: str | None) -> list[Message]:
    """Return a call that needs approval, with the exact arguments that it would run with.

    `approval` is the stored data of the approval; the result is empty without it.
    """
    return _call_messages(event, approval, _call_id(event), parent) if approval else []


def _call_id(event: Event) -> str:
    return str(event.ref_id or event.payload["call_id"])


def _call_messages(event: Event, row: Mapping[str, Any], call_id: str, parent: str | None) -> list[Message]:
    """Return the start, the arguments and the end of a call."""
    start: Message = {
        "type": "TOOL_CALL_START",
        "toolCallId": call_id,
        "toolCallName": event.payload.get("tool_name") or row.get("toolName") or "",
    }
    arguments = row.get("toolInput", event.payload.get("arguments"))
    return [
        start | ({"parentMessageId": parent} if parent else {}),
        {"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": as_text({} if arguments is None else arguments)},
        {"type": "TOOL_CALL_END", "toolCallId": call_id},
    ]


def _output(event: Event, row: Mapping[str, Any]) -> str:
    """Return the output of an ended call as text: the stored one, or else the error or output in the event."""
    output = row.get("toolOutput")
    for name in ("error", "output", "preview"):
        if output is None:
            output = event.payload.get(name)
    return as_text(output)


#: The reasons of interrupts that the protocol defines.
TOOL_CALL, INPUT_REQUIRED = "tool_call", "input_required"
#: JSON Schema of the answer to a request for approval.
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
#: JSON Schema of the answer that resolves an unknown outcome.
OUTCOME_SCHEMA: Message = {
    "type": "object",
    "properties": {
        "choice": {"enum": ["done", "failed", "retry"]},
        "text": {"type": "string", "description": "The output of the call, or its error."},
    },
    "required": ["choice"],
}
#: JSON Schema of the answer to a question, and of the message that resumes a run.
TEXT_SCHEMA: Message = {"type": "string"}


def interrupt(event: Event, call: Mapping[str, Any], approval: Mapping[str, Any]) -> Message:
    """Return the interrupt with which an event ends the AG-UI run.

    `call` and `approval` are the stored data of the call that the event refers to; empty if there is no call.
    """
    reason = event.payload.get("reason") if event.type == EventType.RUN_WAITING else None
    fields = _FIELDS_BY_REASON.get(str(reason), _pause_fields)(event, call, approval)
    return {"id": f"{event.log_id}.{event.seq}", "message": events.describe(event.type, event.payload), **fields}


def _approval_fields(event: Event, call: Mapping[str, Any], approval: Mapping[str, Any]) -> Message:
    name, reason = approval.get("toolName") or call.get("toolName") or "a tool", approval.get("reason")
    fields: Message = {
        "reason": TOOL_CALL,
        "message": f"Approve the call of {name}?" + (f" {reason}" if reason else ""),
    }
    # A call of an external runner has no row, so it cannot be approved here.
    if event.ref_id is None:
        return fields
    fields |= {"toolCallId": str(event.ref_id), "responseSchema": APPROVAL_SCHEMA}
    # AG-UI expects ISO 8601 here; only timestamps are milliseconds.
    return fields | ({"expiresAt": str(event.payload["until"])} if event.payload.get("until") else {})


def _question_fields(event: Event, call: Mapping[str, Any], approval: Mapping[str, Any]) -> Message:
    arguments = call.get("toolInput")
    # The event has only a preview of the question.
    whole = arguments.get("question") if isinstance(arguments, dict) else None
    question = whole if isinstance(whole, str) else event.payload.get("question")
    fields: Message = {"reason": INPUT_REQUIRED, "responseSchema": TEXT_SCHEMA}
    fields["metadata"] = {"choices": event.payload.get("choices") or []}
    return fields | ({"message": question} if question else {})


def _outcome_fields(event: Event, call: Mapping[str, Any], approval: Mapping[str, Any]) -> Message:
    name = call.get("toolName") or "a tool"
    message = f"The outcome of {name} is unknown. What happened?"
    fields: Message = {"reason": "agentops:unknown_tool", "message": message}
    return fields | ({"toolCallId": str(event.ref_id), "responseSchema": OUTCOME_SCHEMA} if event.ref_id else {})


def _pause_fields(event: Event, call: Mapping[str, Any], approval: Mapping[str, Any]) -> Message:
    """Return the fields for a paused run, which can be resumed with or without a message."""
    return {"reason": f"agentops:{event.payload['reason']}", "responseSchema": TEXT_SCHEMA}


_FIELDS_BY_REASON = {"approval": _approval_fields, "input": _question_fields, "unknown_tool": _outcome_fields}
