"""Calls of sub-agents that the program of a session runs: hooks, rules and people decide, and the results are stored.

A sub-agent ends with its program. So the program, and this worker, wait while a person decides about a call.
"""

from __future__ import annotations

from dataclasses import replace

from runs.agents import approval_rules
from runs.agents.approval_rules import ApprovalAction
from runs.engine.drive import Drive
from runs.engine.notes import note
from runs.engine.turns import call_gate, hook_events
from runs.hooks.base import HookContext, HookEvent, VerdictKind
from runs.hooks.deciding import HookDecision, decide_call
from runs.providers.claude_cli import program_command
from runs.providers.claude_cli.call_requests import CallVerdict, SubagentRequest
from runs.providers.claude_cli.program_session import HOOK_TIMEOUT_S
from runs.providers.messages import canonical
from runs.tools.base import Tool
from timeline.events.hook import HookDecided, SafetyBlock
from timeline.log import Entry

#: Maximum seconds for a person's decision: the program does not wait longer.
MAX_EXPIRES_S = HOOK_TIMEOUT_S - 600


def attend(drive: Drive) -> None:
    """Store the lines of sub-agents, and answer their requests."""
    session = drive.session
    assert session is not None
    # First, so that a call is stored before it may run.
    session.store_subagent_lines()
    waits = session.subagent_waits
    for request in session.take_subagent_requests():
        decision = session.subagent_decisions.get(request.call_id)
        if decision is None and not waits.join(request):
            decision = _decide(drive, request)
        if decision is not None:
            session.subagent_decisions[request.call_id] = decision
            session.answer_subagent(request, decision)
    if withdrawn := session.take_withdrawn():
        waits.withdraw(withdrawn)
    for request, decision in waits.take_decided():
        session.subagent_decisions[request.call_id] = decision
        session.answer_subagent(request, decision)


def _decide(drive: Drive, request: SubagentRequest) -> CallVerdict | None:
    """Call the hooks, apply the rules, and store the verdicts. Returns None if the call has to wait for a person."""
    assert drive.session is not None
    tool = drive.toolset.get(request.tool_name)
    assert tool is not None
    if not drive.stands_before(tool):
        return CallVerdict()
    step = drive.run.step_count
    decision = decide_call(drive.hooks, _context(drive, request, tool, step))
    rule = approval_rules.decide(drive.approval_rules, tool.name, decision.arguments)
    events = [_verdict(one, request, step) for one in decision.decisions]
    denied_by, reason = "", ""
    if decision.kind is VerdictKind.DENY:
        denied_by, reason = decision.hook, decision.reason
    elif rule is not None and rule.action is ApprovalAction.DENY:
        denied_by, reason = "an approval rule", rule.reason or "calls like this are not allowed"
    if denied_by:
        block = SafetyBlock(code=denied_by, reason=reason, call_id=request.call_id, tool_name=tool.name)
        events.append(Entry(block, step=step))
    if events:
        note(drive.lease, *events)
    if denied_by:
        return CallVerdict(denied=f"Denied by {denied_by}: {reason}")
    is_changed = canonical(decision.arguments) != canonical(request.arguments)
    if call_gate.needs_person(decision, rule, tool):
        asked = call_gate.approval_request(decision, rule)
        # The run of a sub-agent cannot pause: its program would continue to wait.
        asked = replace(asked, expires_s=min(asked.expires_s, MAX_EXPIRES_S), pauses_on_expiry=False)
        return drive.session.subagent_waits.add(request, asked, is_changed=is_changed)
    arguments = dict(decision.arguments) if is_changed and isinstance(decision.arguments, dict) else None
    # The program requests permission for changed arguments, and no other code answers that request.
    is_free = arguments is not None and program_command.is_free(tool.name, drive.settings)
    return CallVerdict(is_allowed=rule is not None or is_free, arguments=arguments)


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
