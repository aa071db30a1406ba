"""The rows of approvals. They are created when their run begins to wait, and end with that wait.

No function here changes the status of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

from agentops.accounts import notifications
from agentops.base import database_clock
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.lifecycle import moves
from runs.models import AgentRun, AgentRunToolCall, Approval
from runs.providers.messages import canonical
from runs.statuses import ToolStatus, WaitReason
from timeline.display import preview
from timeline.events.tool import ApprovalRequested, ApprovalResolved
from timeline.log import Entry

State = Approval.State
#: The result of an approved call that could not run, because its program was ended while a person decided.
REQUEST_AGAIN = "Not run yet: the session was closed until a person had decided. The call is approved. Request it again"
JSONObject = Mapping[str, Any]


@dataclass(frozen=True)
class ApprovalRequest:
    """A call that may only run after a person has approved it with these exact arguments."""

    arguments: JSONObject | str
    reason: str
    #: The hook that requests approval (`hook:<name>`), `rule` or `tool`.
    requested_by: str
    #: Seconds.
    expires_s: float
    #: Whether the run pauses when the approval expires. By default, the call is denied and the run continues.
    pauses_on_expiry: bool = False


def new_approval(run: AgentRun, call: AgentRunToolCall, request: ApprovalRequest) -> Approval:
    """Return the unsaved row of a request."""
    now = database_clock.now()
    return Approval(
        project_id=run.project_id,
        run=run,
        call=call,
        tool_name=call.tool_name,
        arguments=REDACTOR.clean(cast("Any", request.arguments))[0],
        reason=REDACTOR.clean_text(request.reason)[0],
        requested_by=request.requested_by[:200],
        pauses_on_expiry=request.pauses_on_expiry,
        created_at=now,
        expires_at=now + timedelta(seconds=request.expires_s),
    )


def save_request(approval: Approval) -> None:
    """Insert the row and notify the members of the project, in the transaction of the move."""
    arguments = preview(canonical(approval.arguments), notifications.MAX_TEXT // 2)[0]
    expiry = f"Expires at {approval.expires_at:%Y-%m-%d %H:%M} UTC."
    text = "\n".join(filter(None, [f"{approval.tool_name} {arguments}", approval.reason, expiry]))
    subject = f"Approval of {approval.tool_name}"
    approval.notification_id = moves.notify_members(approval.run, notifications.Kind.APPROVAL, subject, text).pk
    approval.save(force_insert=True)


def requested_event(approval: Approval) -> Entry:
    """Return the event of a request. It contains a preview of the arguments; the row contains all of them."""
    call = approval.call
    payload = ApprovalRequested(
        call_id=call.call_id,
        tool_name=call.tool_name,
        reason=approval.reason or None,
        by=approval.requested_by,
        arguments=preview(canonical(approval.arguments))[0],
    )
    return Entry(payload, step=call.step_number, ref_id=call.pk)


def resolved_event(approval: Approval) -> Entry:
    """Return the event of the end of an approval, with the changes to the arguments."""
    call = approval.call
    payload = ApprovalResolved(
        call_id=call.call_id,
        tool_name=call.tool_name,
        decision=approval.state,
        by=approval.decided_by or None,
        reason=approval.message or None,
        diff=approval.changes,
        always=approval.always,
    )
    return Entry(payload, step=call.step_number, ref_id=call.pk)


def approved(call: AgentRunToolCall) -> Approval | None:
    """Return the approval of this call; None if it was not approved."""
    return Approval.objects.filter(call=call, state=State.APPROVED).select_related("call").first()


def approved_before(call: AgentRunToolCall, arguments: JSONObject | str) -> Approval | None:
    """Return the approval of an identical earlier call that could not run (see `REQUEST_AGAIN`); None without one.

    Such an approval is valid for one call.
    """
    approvals = Approval.objects.filter(run=call.run_id, tool_name=call.tool_name, state=State.APPROVED)
    not_run = approvals.filter(call__status=ToolStatus.ERROR, call__starts=0)
    earlier = not_run.select_related("call").order_by("-pk").first()
    if earlier is None:
        return None
    later = AgentRunToolCall.objects.filter(run=call.run_id, tool_name=call.tool_name, pk__gt=earlier.call_id)
    if later.filter(starts__gt=0).exists():
        return None
    cleaned, _ = REDACTOR.clean(cast("Any", arguments))
    changed = earlier.call.changed_arguments
    is_same = cleaned == earlier.arguments if changed is None else canonical(arguments) == canonical(changed)
    return earlier if is_same else None


def approved_for_run(run: AgentRun, tool_name: str) -> Approval | None:
    """Return the approval for all calls of the tool in this run, if there is one."""
    return Approval.objects.filter(run=run, tool_name=tool_name, state=State.APPROVED, always=True).first()


def is_pending(run: AgentRun) -> bool:
    """Whether an approval of the run is pending."""
    return Approval.objects.filter(run=run, state=State.PENDING).exists()


def cancel(run: AgentRun) -> list[Entry]:
    """Cancel the pending approval of a run that ends or pauses, in the transaction of the move. Returns its event.

    Sends no query if the run waits for no approval.
    """
    if run.status_reason != WaitReason.APPROVAL:
        return []
    approval = Approval.objects.select_related("call").filter(run=run, state=State.PENDING).first()
    if approval is None:
        return []
    approval.state, approval.decided_at = State.CANCELLED, database_clock.now()
    approval.save(update_fields=["state", "decided_at"])
    return [resolved_event(approval)]
