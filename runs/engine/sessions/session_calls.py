"""Calls that the program of a session and its sub-agents run: send it the verdicts on them, and store its usage.

While one call runs, the program may ask about the next ones, and about calls of its sub-agents: hooks, rules and people
decide. A sub-agent ends with its program, so the program and this worker keep running while a person decides about a
call of a sub-agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from django.db import transaction

from runs import chaos
from runs.agents import call_rules
from runs.conversation import tool_starts, writes
from runs.conversation.tool_results import CallResult
from runs.conversation.writes import Commit
from runs.engine.drive import Drive
from runs.engine.results import ApprovalNeeded
from runs.engine.safe_commit import commit_safely, do_nothing, note
from runs.engine.turns import hook_events, open_call
from runs.engine.turns.open_call import CallPermit
from runs.hooks.base import HookEvent
from runs.hooks.deciding import HookDecision, decide_call
from runs.lifecycle.approval_rows import REQUEST_AGAIN
from runs.models import AgentRunToolCall, TurnUsage
from runs.providers.claude_cli import claude_provider
from runs.providers.claude_cli.program_messages import CallVerdict, SubagentRequest
from runs.providers.claude_cli.program_session import HOOK_TIMEOUT_S
from runs.providers.messages import canonical
from runs.statuses import ToolStatus
from timeline.events.llm import LlmUsage
from timeline.events.tool import HookDecided, SafetyBlock
from timeline.log import Entry

NEEDS_PERSON = "Not run yet: a person has to decide about this call first. Wait for the decision"


def is_running(drive: Drive, call: AgentRunToolCall) -> bool:
    """Whether the program that this worker has started already runs the call."""
    return call.status == ToolStatus.RUNNING and drive.session is not None and drive.session.knows(call.call_id)


def keep_verdict(drive: Drive, call: AgentRunToolCall, permit: CallPermit) -> CallResult | None:
    """Keep the verdict on a permitted call for the program. Does nothing without a session.

    Returns the result of a call whose program was ended while a person decided: the program has to request it again.
    """
    session = drive.session
    if session is None:
        return None
    if session.knows(call.call_id):
        session.keep_verdict(call.call_id, _verdict(drive, call, permit))
        return None
    if not permit.is_allowed:
        return None
    arguments = "" if call.changed_arguments is None else f" with these arguments: {canonical(call.changed_arguments)}"
    return CallResult(ToolStatus.ERROR, f"{REQUEST_AGAIN}{arguments}", events=permit.events)


def _verdict(drive: Drive, call: AgentRunToolCall, permit: CallPermit) -> CallVerdict:
    arguments = None if call.changed_arguments is None else dict(call.changed_arguments)
    return CallVerdict(is_allowed=permit.is_allowed or _is_free(drive, call.tool_name, arguments), arguments=arguments)


def _is_free(drive: Drive, tool_name: str, changed_arguments: Mapping[str, Any] | None) -> bool:
    """Whether a call has changed arguments, and a tool that needs no permission.

    The program would run such a call without asking. Because its arguments were changed, it asks for permission, and
    the verdict has to allow the call.
    """
    return changed_arguments is not None and claude_provider.is_free(tool_name, drive.settings)


def send_denial(drive: Drive, call: AgentRunToolCall, result: CallResult) -> None:
    """Send the program the stored result of a call that was not started, as the reason for denying the call."""
    session = drive.session
    if session is not None and not call.starts and session.knows(call.call_id):
        session.send_verdict(call.call_id, CallVerdict(denied=str(result.output)))


def end_subagent(drive: Drive, call: AgentRunToolCall, result: CallResult) -> None:
    """End the record of the sub-agent that worked for a call, unless it continues in the background."""
    is_background = isinstance(call.input, dict) and call.input.get("run_in_background") is True
    if drive.session is not None and call.tool_name in claude_provider.SUBAGENT_TOOLS and not is_background:
        drive.session.end_subagent(call.call_id, result.status)


def attend(drive: Drive) -> None:
    """Answer the program's requests while it runs a call or answers. Does nothing without a session.

    It may request the next call before it reports the result of the running one, or request both at once.
    """
    if drive.session is None:
        return
    attend_subagents(drive)
    for call in drive.open_calls[1:]:
        if call.status == ToolStatus.PLANNED and drive.session.is_asking(call.call_id):
            _decide_ahead(drive, call)


def _decide_ahead(drive: Drive, call: AgentRunToolCall) -> None:
    """Permit or deny a call before it is the next open call. Keeps the result of a denied call in `denied_ahead`."""
    session, tool = drive.session, drive.toolset.get(call.tool_name)
    assert session is not None
    assert tool is not None
    permit = None if tool.asks else open_call.review(drive, call, tool)
    match permit:
        case ApprovalNeeded() | None:
            # A person decides once it is the next open call. If the request stayed open until then, the program would
            # hold back the results of the other calls.
            session.send_verdict(call.call_id, CallVerdict(denied=NEEDS_PERSON))
        case CallResult():
            note(drive.lease, *permit.events)
            drive.denied_ahead[call.pk] = replace(permit, events=())
            session.send_verdict(call.call_id, CallVerdict(denied=str(permit.output)))
        case CallPermit():
            permit.apply_to(call)
            commit_start(drive, call, 0, permit.events)
            session.send_verdict(call.call_id, _verdict(drive, call, permit))


def commit_start(drive: Drive, call: AgentRunToolCall, attempt: int, before: Sequence[Entry]) -> None:
    """Store a call as running. `before` are events to append first, such as verdicts. Raises `LeaseLost`."""
    chaos.point("hooks.decided")
    chaos.point("tool.before_start")
    expected_status = call.status
    entries = [*before, tool_starts.start_call(call, attempt=attempt)]
    commit_safely(
        partial(tool_starts.commit_start, call, entries, drive.epoch, expected_status=expected_status),
        is_committed=lambda: AgentRunToolCall.objects.filter(pk=call.pk, starts=call.starts).exists(),
        read_result=do_nothing,
        lease=drive.lease,
        proves_lease=True,
    )


#: Maximum seconds for a person's decision: ten minutes less than the program waits for an answer.
MAX_EXPIRES_S = HOOK_TIMEOUT_S - 600


def attend_subagents(drive: Drive) -> None:
    """Store the lines of sub-agents, and answer their requests."""
    session = drive.session
    assert session is not None
    # First, so that a call is stored before it may run.
    session.store_subagent_lines()
    waits = session.subagent_waits
    for request in session.take_subagent_requests():
        verdict = session.subagent_verdicts.get(request.call_id)
        if verdict is None and not waits.join(request):
            verdict = _decide_for_subagent(drive, request)
        if verdict is not None:
            session.answer_subagent(request, verdict)
    if withdrawn := session.take_withdrawn():
        waits.withdraw(withdrawn)
    for request, verdict in waits.take_decided():
        session.answer_subagent(request, verdict)


def _decide_for_subagent(drive: Drive, request: SubagentRequest) -> CallVerdict | None:
    """Decide about a sub-agent's call by hooks and rules, and store their verdicts.

    Returns None if the call has to wait for a person.
    """
    assert drive.session is not None
    tool = drive.toolset.get(request.tool_name)
    assert tool is not None
    if not drive.may_be_blocked(tool):
        return CallVerdict()
    step = drive.run.step_count
    context = hook_events.call_context(
        drive, HookEvent.PRE_TOOL_USE, step, tool, call_id=request.call_id, arguments=request.arguments
    )
    decision = decide_call(drive.hooks, context)
    rule = call_rules.decide(drive.approval_rules, tool.name, decision.arguments)
    events = [_verdict_event(one, request, step) for one in decision.decisions]
    denial = open_call.denial(decision, rule)
    if denial is not None:
        block = SafetyBlock(code=denial.by, reason=denial.reason, call_id=request.call_id, tool_name=tool.name)
        events.append(Entry(block, step=step))
    if events:
        note(drive.lease, *events)
    if denial is not None:
        return CallVerdict(denied=denial.text)
    is_changed = canonical(decision.arguments) != canonical(request.arguments)
    if open_call.needs_person(decision, rule, needs_approval=tool.needs_approval):
        approval = open_call.approval_request(decision, rule)
        # The run of a sub-agent cannot pause: its program would continue to wait.
        approval = replace(approval, expires_s=min(approval.expires_s, MAX_EXPIRES_S), pauses_on_expiry=False)
        return drive.session.subagent_waits.add(request, approval, is_changed=is_changed)
    arguments = dict(decision.arguments) if is_changed and isinstance(decision.arguments, dict) else None
    is_allowed = rule is not None or _is_free(drive, tool.name, arguments)
    return CallVerdict(is_allowed=is_allowed, arguments=arguments)


def _verdict_event(decision: HookDecision, request: SubagentRequest, step: int) -> Entry:
    """Return the event of a hook's verdict on a sub-agent's call, which has no row."""
    [entry] = hook_events.verdict_entries([decision], step=step)
    assert isinstance(entry.payload, HookDecided)
    payload = entry.payload.model_copy(update={"call_id": request.call_id, "tool_name": request.tool_name})
    return Entry(payload, step=step)


_SOURCES: Mapping[str, Literal["reported", "project"]] = {"reported": "reported", "project": "project"}


def usage_events(drive: Drive, usages: Iterable[TurnUsage], step: int) -> list[Entry]:
    """Add usage that no answer includes to the budgets, and return its events and the warnings of the budgets."""
    entries: list[Entry] = []
    for usage in usages:
        entries += [Entry(_payload(usage), step=step), *drive.spending.count(usage, step)]
    return entries


def write_usage(turn: Commit, usages: Sequence[TurnUsage]) -> bool:
    """Write a turn together with usage that no answer includes. Returns the result of `writes.write`."""
    assert turn.epoch is not None
    with transaction.atomic():
        for usage in usages:
            usage.pk = None  # set by an earlier attempt to write, which was rolled back
        writes.count_reported(usages, turn.epoch)
        return writes.write(turn)


def _payload(usage: TurnUsage) -> LlmUsage:
    return LlmUsage(
        model=usage.model,
        input_tokens=usage.input_tokens or None,
        output_tokens=usage.output_tokens or None,
        cache_read_tokens=usage.cache_read_tokens or None,
        cache_write_tokens=usage.cache_write_tokens or None,
        cache_write_1h_tokens=usage.cache_write_1h_tokens or None,
        cost_usd=None if usage.cost_usd is None else str(usage.cost_usd),
        cost_source=_SOURCES.get(usage.cost_source),
    )
