"""The next open call: its arguments, the context for its tool, and the checks before it may run.

The checks are its hooks, the approval rules, and the decision of a person.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from typing import Any

from django.conf import settings
from pydantic_ai.messages import ToolCallPart

from agentops.base.redaction.partial_texts import mask
from agentops.base.redaction.redact import MODEL_INPUT
from runs.agents import call_rules
from runs.agents.call_rules import ApprovalAction, ApprovalRule, OnExpiry
from runs.conversation import call_ids
from runs.conversation.tool_results import CallResult
from runs.conversation.tool_starts import as_object
from runs.engine.drive import Drive
from runs.engine.results import ApprovalNeeded
from runs.engine.turns import hook_events
from runs.engine.turns.running_calls import LiveOutput
from runs.hooks.base import HookEvent, VerdictKind
from runs.hooks.deciding import Arguments, CallDecision, decide_call
from runs.lifecycle import approval_rows, session_subagents
from runs.lifecycle.approval_rows import ApprovalRequest
from runs.lifecycle.causes import LLM_COMPLETE
from runs.models import AgentRunToolCall, Approval
from runs.providers import finish_reasons
from runs.providers.messages import canonical
from runs.statuses import ToolStatus
from runs.tools.agent_tools import Question, question_of
from runs.tools.base import Tool, ToolContext
from timeline.events.notice import Error
from timeline.events.tool import ApprovalResolved, SafetyBlock
from timeline.log import Entry

#: The maximum number of calls of one answer that are run. Further calls get an error: the model is out of control.
MAX_CALLS = 64
#: The maximum number of tool names listed for a model that calls an unknown tool.
MAX_NAMES = 20


def question(drive: Drive) -> Question | None:
    """Return the question that the next open call asks a person; None for any other call."""
    if not drive.open_calls:
        return None
    call = drive.open_calls[0]
    tool = drive.toolset.get(call.tool_name)
    if tool is None or not tool.asks or why_not_run(drive, call):
        return None
    return question_of(tool, context(drive, call, attempt=0), arguments_of(drive, call))


def arguments_of(drive: Drive, call: AgentRunToolCall) -> Any:
    """Return the arguments for the tool: as changed by a hook or an approver, or else from the model's message.

    They are not taken from the row's `input`, because that is redacted.
    """
    if call.changed_arguments is not None:
        return call.changed_arguments
    return next(part for part in _parts(drive) if part.tool_call_id == call.call_id).args or {}


def why_not_run(drive: Drive, call: AgentRunToolCall) -> str:
    """Return the result of a call that its answer rules out: of too many, cut off or refused; empty for other calls.

    Whether a call of a session's program runs is decided by the program, except for too many.
    """
    parts = _parts(drive)
    index = [part.tool_call_id for part in parts].index(call.call_id)
    if index >= MAX_CALLS:
        return f"Not run: more than {MAX_CALLS} calls in one answer."
    assert drive.last_answer is not None
    return "" if drive.session is not None else finish_reasons.why_not_run(drive.last_answer, parts[index])


def dropped_calls_event(count: int, step: int) -> list[Entry]:
    """Return the event about calls that were removed from an answer; empty if none were removed."""
    if not count:
        return []
    text = (
        f"The answer requested {call_ids.MAX_KEPT + count:,} tool calls. "
        f"The conversation keeps the first {call_ids.MAX_KEPT}, of which {MAX_CALLS} are run."
    )
    return [Entry(Error(error_type="too_many_calls", error=text, context=LLM_COMPLETE), step=step, clean=True)]


def unknown_tool(drive: Drive, call: AgentRunToolCall) -> str:
    """Return the result of a call of an unknown tool. It names the most similar tool, or the existing tools."""
    names = [definition.name for definition in drive.toolset.definitions()]
    similar = get_close_matches(call.tool_name, names, n=1)
    hint = f" Did you mean {similar[0]!r}?" if similar else ""
    if not hint and names:
        hint = f" There are: {', '.join(names[:MAX_NAMES])}{', …' if len(names) > MAX_NAMES else ''}."
    return f"There is no tool named {call.tool_name!r}.{hint}"


def context(drive: Drive, call: AgentRunToolCall, *, attempt: int, output: LiveOutput | None = None) -> ToolContext:
    """Return the context for the tool of a call. Attempts count from 0. The tool writes to `output`."""
    pk = str(call.pk)
    key = call.idempotency_key or pk
    tool_context = _context(drive, call.call_id, pk, key, attempt=attempt, step=call.step_number)
    return tool_context if output is None else replace(tool_context, write=output.write)


def context_of_gate(drive: Drive, name: str) -> ToolContext:
    """Return the context for a gate. A gate has no call, so the IDs in the context are made from its name."""
    return _context(drive, name, name, f"{drive.run.pk}:{name}", attempt=0, step=drive.run.step_count)


def _context(drive: Drive, call_id: str, pk: str, key: str, *, attempt: int, step: int) -> ToolContext:
    return ToolContext(
        run_id=str(drive.run.pk),
        call_id=call_id,
        tool_call_pk=pk,
        idempotency_key=key,
        attempt=attempt,
        epoch=drive.epoch,
        model_call=drive.call_number(step),
        settings=drive.settings,
        cancelled=lambda: drive.lease.lost.is_set() or drive.shutdown.is_due,
        # Fixed here: a tool runs in a separate thread, which has no project in scope.
        mask=partial(mask, redactor=MODEL_INPUT.fixed()),
    )


def _parts(drive: Drive) -> list[ToolCallPart]:
    """Return the calls of the last answer, to which open calls always belong."""
    assert drive.last_answer is not None
    return drive.last_answer.tool_calls


@dataclass(frozen=True)
class CallPermit:
    """The call may run. `events` are committed with its start."""

    #: The arguments instead of the model's; None if they are unchanged.
    changed_arguments: Mapping[str, Any] | None = None
    events: Sequence[Entry] = ()
    #: Whether a person or a rule has allowed it; otherwise no hook or rule objected.
    is_allowed: bool = False

    def apply_to(self, call: AgentRunToolCall) -> None:
        """Set the changed arguments in the call's row, in memory."""
        if self.changed_arguments is not None:
            call.changed_arguments = dict(self.changed_arguments)


@dataclass(frozen=True)
class Denial:
    """Who denies a call, and why."""

    by: str
    reason: str

    @property
    def text(self) -> str:
        """The result of the call for the model."""
        return f"Denied by {self.by}: {self.reason}"


def review(drive: Drive, call: AgentRunToolCall, tool: Tool) -> CallPermit | CallResult | ApprovalNeeded:
    """Decide whether a call that was not started may run. Returns the result of a denied call. Writes nothing.

    Across hooks and rules, "deny" takes precedence over "ask", and "ask" over "allow". An approval settles "ask" only
    for the arguments that were approved; a denial always applies.
    """
    if not drive.may_be_blocked(tool):
        return CallPermit()
    given, step, event = given_arguments(drive, call), call.step_number, HookEvent.PRE_TOOL_USE
    context = hook_events.call_context(drive, event, step, tool, call_id=call.call_id, arguments=given)
    decision = decide_call(drive.hooks, context)
    events = hook_events.verdict_entries(decision.decisions, step=step, call=call)
    rule = call_rules.decide(drive.approval_rules, tool.name, decision.arguments)
    if (denied := denial(decision, rule)) is not None:
        return denied_result(call, denied, events)
    is_changed = canonical(decision.arguments) != canonical(given)
    changed = decision.arguments if is_changed else call.changed_arguments
    permit = CallPermit(changed if isinstance(changed, Mapping) else None, events, is_allowed=rule is not None)
    if not needs_person(decision, rule, needs_approval=tool.needs_approval):
        return permit
    if approval_rows.approved(call) is not None:
        if is_changed:
            denied = Denial("the approval", "a hook changed the arguments after they were approved")
            return denied_result(call, denied, events)
        return replace(permit, is_allowed=True)
    if drive.session is None:
        standing = approval_rows.approved_for_run(drive.run, tool.name)
    else:
        standing = session_subagents.approved_in_session(drive.run, tool.name)
        standing = standing or approval_rows.approved_before(call, decision.arguments)
    if standing is not None:
        return replace(permit, events=[*events, _standing_event(call, standing)], is_allowed=True)
    return ApprovalNeeded(call, approval_request(decision, rule), permit.changed_arguments is not None, events)


def given_arguments(drive: Drive, call: AgentRunToolCall) -> Arguments:
    """Return the arguments as an object, or as the text of the model if they are not a JSON object."""
    value: Arguments = as_object(arguments_of(drive, call))
    return value


def denial(decision: CallDecision, rule: ApprovalRule | None) -> Denial | None:
    """Return the denial of a call by its hooks or a rule; None if neither denies it."""
    if decision.kind is VerdictKind.DENY:
        return Denial(decision.hook, decision.reason)
    if rule is not None and rule.action is ApprovalAction.DENY:
        return Denial("an approval rule", rule.reason or "calls like this are not allowed")
    return None


def denied_result(call: AgentRunToolCall, denied: Denial, events: Sequence[Entry]) -> CallResult:
    """Return the result of a denied call, with the events of the verdicts and of the denial."""
    block = SafetyBlock(code=denied.by, reason=denied.reason, call_id=call.call_id, tool_name=call.tool_name)
    entry = Entry(block, step=call.step_number, ref_id=call.pk)
    return CallResult(ToolStatus.DENIED, denied.text, call.attempts, call.duration_ms, [*events, entry])


def needs_person(decision: CallDecision, rule: ApprovalRule | None, *, needs_approval: bool) -> bool:
    """Whether a person has to approve a call that no hook or rule denies. `needs_approval`: of its tool."""
    if decision.kind is VerdictKind.ASK:
        return True
    return needs_approval if rule is None else rule.action is ApprovalAction.ASK


def approval_request(decision: CallDecision, rule: ApprovalRule | None) -> ApprovalRequest:
    """Return the request for approval by a hook, by a rule, or by the tool itself."""
    if decision.kind is VerdictKind.ASK:
        requested_by, reason = f"hook:{decision.hook}", decision.reason
    elif rule is not None and rule.action is ApprovalAction.ASK:
        requested_by, reason = "rule", rule.reason
    else:
        requested_by, reason = "tool", ""
    expires_s = None if rule is None else rule.expires_s
    return ApprovalRequest(
        arguments=decision.arguments,
        reason=reason,
        requested_by=requested_by,
        expires_s=settings.AGENTOPS_APPROVAL_EXPIRES_S if expires_s is None else expires_s,
        pauses_on_expiry=rule is not None and rule.on_expiry is OnExpiry.PAUSE,
    )


def _standing_event(call: AgentRunToolCall, standing: Approval) -> Entry:
    """Return the event of a call that an earlier approval allows, without a new request."""
    payload = ApprovalResolved(
        call_id=call.call_id,
        tool_name=call.tool_name,
        decision=Approval.State.APPROVED,
        by=standing.decided_by,
        reason="for all calls of this tool in the run",
        always=True,
    )
    return Entry(payload, step=call.step_number, ref_id=call.pk)
