"""The rows of approvals: created when their run begins to wait, ended with that wait. They never change a status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

from agentops.accounts import notifications
from agentops.base import database_clock
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.models import AgentRun, AgentRunToolCall, Approval
from runs.providers.messages import canonical
from runs.statuses import ToolStatus, WaitReason
from timeline.events.hook import ApprovalRequested, ApprovalResolved
from timeline.log import Entry
from timeline.preview import preview

State = Approval.State
#: The result of an approved call whose program was ended while a person decided: approved, but not run.
REQUEST_AGAIN = "Not run yet: the session was closed until a person had decided. The call is approved. Request it again"
JSONObject = Mapping[str, Any]


@dataclass(frozen=True)
class ApprovalRequest:
    """A call that may only run after a person has approved it with these exact arguments."""

    arguments: JSONObject | str
    reason: str
    #: The hook or rule that requests approval.
    requested_by: str
    expires_s: float
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
    """Insert the row and notify the project, in the transaction of the move."""
    run = approval.run
    name = run.title or run.agent_config.get("agent_id") or run.pk
    title, _ = REDACTOR.clean_text(f"Approval of {approval.tool_name}: {name}")
    arguments = preview(canonical(approval.arguments), notifications.MAX_TEXT // 2)[0]
    expiry = f"Expires at {approval.expires_at:%Y-%m-%d %H:%M} UTC."
    text = "\n".join(filter(None, [f"{approval.tool_name} {arguments}", approval.reason, expiry]))
    notification = notifications.notify(
        run.project_id, kind=notifications.Kind.APPROVAL, title=title, text=text, run_id=run.pk
    )
    approval.notification_id = notification.pk
    approval.save(force_insert=True)


def requested_event(approval: Approval) -> Entry:
    """Return the event of a request. It contains a preview of the arguments; the row has all of them."""
    call = approval.call
    payload = ApprovalRequested(
        call_id=call.call_id, tool_name=call.tool_name, reason=approval.reason or None, by=approval.requested_by,
        arguments=preview(canonical(approval.arguments))[0],
    )  # fmt: skip
    return Entry(payload, step=call.step_number, ref_id=call.pk)


def resolved_event(approval: Approval) -> Entry:
    """Return the event of a decision, with the changes to the arguments."""
    call = approval.call
    payload = ApprovalResolved(
        call_id=call.call_id, tool_name=call.tool_name, decision=approval.state, by=approval.decided_by or None,
        reason=approval.message or None, diff=approval.changes, always=approval.always,
    )  # fmt: skip
    return Entry(payload, step=call.step_number, ref_id=call.pk)


def approved(call: AgentRunToolCall) -> Approval | None:
    """Return the approval of this call, if it was approved."""
    return Approval.objects.filter(call=call, state=State.APPROVED).select_related("call").first()


def approved_before(call: AgentRunToolCall, arguments: JSONObject | str) -> Approval | None:
    """Return the approval of an identical earlier call that could not run: see `REQUEST_AGAIN`. It is valid once."""
    earlier = Approval.objects.filter(
        run=call.run_id, tool_name=call.tool_name, state=State.APPROVED, call__status=ToolStatus.ERROR, call__starts=0
    ).select_related("call").order_by("-pk").first()  # fmt: skip
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
    """End the pending approval of a run that is paused or stopped, in the transaction of the move. Returns its event.

    A run that waits for no approval costs no query.
    """
    if run.status_reason != WaitReason.APPROVAL:
        return []
    approval = Approval.objects.select_related("call").filter(run=run, state=State.PENDING).first()
    if approval is None:
        return []
    approval.state, approval.decided_at = State.CANCELLED, database_clock.now()
    approval.save(update_fields=["state", "decided_at"])
    return [resolved_event(approval)]
