"""The checks before a tool call: its hooks, the approval rules, and the decision of a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from runs.agents import approval_rules
from runs.agents.approval_rules import ApprovalAction, ApprovalRule, OnExpiry
from runs.conversation.tool_results import CallResult
from runs.conversation.tool_starts import as_object
from runs.engine.drive import Drive
from runs.engine.results import ApprovalNeeded
from runs.engine.turns import hook_events, open_call
from runs.hooks.base import HookContext, HookEvent, VerdictKind
from runs.hooks.deciding import CallDecision, decide_call
from runs.lifecycle import approval_rows, subagent_approvals
from runs.lifecycle.approval_rows import ApprovalRequest
from runs.models import AgentRunToolCall, Approval
from runs.providers.messages import canonical
from runs.statuses import ToolStatus
from runs.tools.base import Tool
from timeline.events.hook import ApprovalResolved, SafetyBlock
from timeline.log import Entry

Arguments = Mapping[str, Any] | str


@dataclass(frozen=True)
class CallPermit:
    """The call may run. `events` are committed with its start."""

    #: The arguments instead of the model's; None if they are unchanged.
    changed_arguments: Mapping[str, Any] | None = None
    events: Sequence[Entry] = ()
    #: Whether a person or a rule has allowed it; otherwise no hook or rule objected.
    is_allowed: bool = False


def review(drive: Drive, call: AgentRunToolCall, tool: Tool) -> CallPermit | CallResult | ApprovalNeeded:
    """Decide whether a call that was not started may run. Writes nothing.

    Deny > ask > allow, across hooks and rules. An approval settles "ask" only for the arguments that were approved; a
    denial always applies.
    """
    if not drive.stands_before(tool):
        return CallPermit()
    given = given_arguments(drive, call)
    decision = decide_call(drive.hooks, _context(drive, call, tool, given))
    events = hook_events.verdict_entries(decision.decisions, step=call.step_number, call=call)
    rule = approval_rules.decide(drive.approval_rules, tool.name, decision.arguments)
    if decision.kind is VerdictKind.DENY:
        return denial(call, decision.hook, decision.reason, events)
    if rule is not None and rule.action is ApprovalAction.DENY:
        return denial(call, "an approval rule", rule.reason or "calls like this are not allowed", events)
    changed = decision.arguments if canonical(decision.arguments) != canonical(given) else call.changed_arguments
    if not needs_person(decision, rule, tool):
        return CallPermit(_as_changed(changed), events, is_allowed=rule is not None)
    approval = approval_rows.approved(call)
    if approval is not None and canonical(decision.arguments) != canonical(given):
        return denial(call, "the approval", "a hook changed the arguments after they were approved", events)
    if approval is not None:
        return CallPermit(_as_changed(changed), events, is_allowed=True)
    if drive.session is None:
        standing = approval_rows.approved_for_run(drive.run, tool.name)
    else:
        standing = subagent_approvals.approved_in_session(drive.run, tool.name)
        standing = standing or approval_rows.approved_before(call, decision.arguments)
    if standing is not None:
        return CallPermit(_as_changed(changed), [*events, _standing_event(call, standing)], is_allowed=True)
    return ApprovalNeeded(call, approval_request(decision, rule), _as_changed(changed) is not None, events)


def given_arguments(drive: Drive, call: AgentRunToolCall) -> Arguments:
    """Return the arguments as an object, or as the text of the model if they are not a JSON object."""
    value: Arguments = as_object(open_call.arguments(drive, call))
    return value


def denial(call: AgentRunToolCall, denied_by: str, reason: str, events: Sequence[Entry]) -> CallResult:
    """Return the result of a call that a hook or a rule denies."""
    block = SafetyBlock(code=denied_by, reason=reason, call_id=call.call_id, tool_name=call.tool_name)
    entry = Entry(block, step=call.step_number, ref_id=call.pk)
    text = f"Denied by {denied_by}: {reason}"
    return CallResult(ToolStatus.DENIED, text, call.attempts, call.duration_ms, [*events, entry])


def needs_person(decision: CallDecision, rule: ApprovalRule | None, tool: Tool) -> bool:
    """Whether a person has to approve a call that no hook or rule denies."""
    if decision.kind is VerdictKind.ASK:
        return True
    return tool.needs_approval if rule is None else rule.action is ApprovalAction.ASK


def approval_request(decision: CallDecision, rule: ApprovalRule | None) -> ApprovalRequest:
    """Return the approval request of a hook, a rule or the tool itself."""
    is_rule = rule is not None and rule.action is ApprovalAction.ASK
    expires_s = rule.expires_s if rule is not None and rule.expires_s is not None else None
    if decision.kind is VerdictKind.ASK:
        requested_by, reason = f"hook:{decision.hook}", decision.reason
    else:
        requested_by, reason = ("rule", rule.reason) if is_rule and rule is not None else ("tool", "")
    return ApprovalRequest(
        arguments=decision.arguments,
        reason=reason,
        requested_by=requested_by,
        expires_s=settings.AGENTOPS_APPROVAL_EXPIRES_S if expires_s is None else expires_s,
        pauses_on_expiry=rule is not None and rule.on_expiry is OnExpiry.PAUSE,
    )


def _context(drive: Drive, call: AgentRunToolCall, tool: Tool, arguments: Arguments) -> HookContext:
    return hook_events.context(
        drive, HookEvent.PRE_TOOL_USE, call.step_number,
        tool_name=tool.name, effect=tool.effect.value, call_id=call.call_id, arguments=arguments,
    )  # fmt: skip


def _as_changed(arguments: Arguments | None) -> Mapping[str, Any] | None:
    return arguments if isinstance(arguments, Mapping) else None


def _standing_event(call: AgentRunToolCall, standing: Approval) -> Entry:
    payload = ApprovalResolved(
        call_id=call.call_id, tool_name=call.tool_name, decision=Approval.State.APPROVED, by=standing.decided_by,
        reason="for all calls of this tool in the run", always=True,
    )  # fmt: skip
    return Entry(payload, step=call.step_number, ref_id=call.pk)
