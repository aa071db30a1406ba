"""Calls of sub-agents that the program of a session runs: hooks and rules decide, and what they did is stored.

Nobody can be asked: the sub-agent would have to be kept waiting, with its program and this worker.
"""

from __future__ import annotations

from runs.agents import approval_rules
from runs.agents.approval_rules import ApprovalAction
from runs.engine.drive import Drive
from runs.engine.notes import note
from runs.engine.turns import hook_events
from runs.hooks.base import HookContext, HookEvent, VerdictKind
from runs.hooks.deciding import HookDecision, decide_call
from runs.providers.claude_cli.call_requests import CallVerdict, SubagentRequest
from runs.providers.messages import canonical
from runs.tools.base import Tool
from timeline.events.hook import HookDecided, SafetyBlock
from timeline.log import Entry

NO_PERSON = "a person has to approve this, and nobody is asked for a sub-agent: leave the call to the main agent"


def attend(drive: Drive) -> None:
    """Store what sub-agents have said, and answer what they ask."""
    session = drive.session
    assert session is not None
    # First, so that a call is stored before it may run.
    session.store_subagent_lines()
    for request in session.take_subagent_requests():
        decision = session.subagent_decisions.get(request.call_id)
        if decision is None:
            decision = session.subagent_decisions[request.call_id] = _decide(drive, request)
        session.answer_subagent(request, decision)


def _decide(drive: Drive, request: SubagentRequest) -> CallVerdict:
    """Ask the hooks and the rules, and store what they say before the program is told."""
    tool = drive.toolset.get(request.tool_name)
    assert tool is not None
    if not drive.stands_before(tool):
        return CallVerdict()
    step = drive.run.step_count
    decision = decide_call(drive.hooks, _context(drive, request, tool, step))
    rule = approval_rules.decide(drive.approval_rules, tool.name, decision.arguments)
    denied_by, reason = "", ""
    if decision.kind is VerdictKind.DENY:
        denied_by, reason = decision.hook, decision.reason
    elif rule is not None and rule.action is ApprovalAction.DENY:
        denied_by, reason = "an approval rule", rule.reason or "calls like this are not allowed"
    elif decision.kind is VerdictKind.ASK or (rule is not None and rule.action is ApprovalAction.ASK):
        denied_by, reason = decision.hook or "an approval rule", NO_PERSON
    events = [_verdict(one, request, step) for one in decision.decisions]
    if denied_by:
        block = SafetyBlock(code=denied_by, reason=reason, call_id=request.call_id, tool_name=tool.name)
        events.append(Entry(block, step=step))
    if events:
        note(drive.lease, *events)
    is_changed = canonical(decision.arguments) != canonical(request.arguments)
    arguments = dict(decision.arguments) if is_changed and isinstance(decision.arguments, dict) else None
    denied = f"Denied by {denied_by}: {reason}" if denied_by else ""
    return CallVerdict(denied=denied, is_allowed=rule is not None and not denied, arguments=arguments)


def _context(drive: Drive, request: SubagentRequest, tool: Tool, step: int) -> HookContext:
    return hook_events.context(
        drive, HookEvent.PRE_TOOL_USE, step, tool_name=tool.name, effect=tool.effect.value,
        call_id=request.call_id, arguments=request.arguments,
    )  # fmt: skip


def _verdict(decision: HookDecision, request: SubagentRequest, step: int) -> Entry:
    [entry] = hook_events.verdict_entries([decision], step=step)
    assert isinstance(entry.payload, HookDecided)
    payload = entry.payload.model_copy(update={"call_id": request.call_id, "tool_name": request.tool_name})
    return Entry(payload, step=step)
