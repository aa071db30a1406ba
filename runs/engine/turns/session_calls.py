"""Calls that the program of a session runs: what the program is told of a decision about them."""

from __future__ import annotations

from runs.conversation.tool_results import CallResult
from runs.engine.drive import Drive
from runs.engine.turns.call_gate import CallPermit
from runs.lifecycle.approval_rows import REQUEST_AGAIN
from runs.models import AgentRunToolCall
from runs.providers.messages import canonical
from runs.statuses import ToolStatus


def is_running(drive: Drive, call: AgentRunToolCall) -> bool:
    """Whether the program of this worker runs the call already."""
    return call.status == ToolStatus.RUNNING and drive.session is not None and drive.session.knows(call.call_id)


def prepare(drive: Drive, call: AgentRunToolCall, permit: CallPermit) -> CallResult | None:
    """Tell the program what was decided of a call.

    Returns the result of a call whose program was ended while a person decided: it has to request the call again.
    """
    session = drive.session
    if session is None:
        return None
    if session.knows(call.call_id):
        session.prepare(call.call_id, is_allowed=permit.is_allowed, is_changed=call.changed_arguments is not None)
        return None
    if not permit.is_allowed:
        return None
    arguments = "" if call.changed_arguments is None else f" with these arguments: {canonical(call.changed_arguments)}"
    return CallResult(ToolStatus.ERROR, f"{REQUEST_AGAIN}{arguments}", events=permit.events)
