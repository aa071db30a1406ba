"""Calls that the program of a session runs: send it the decisions about them.

While one call runs, the program may ask about the next ones, and about calls of its sub-agents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from runs import chaos
from runs.conversation import tool_starts
from runs.conversation.tool_results import CallResult
from runs.engine.drive import Drive
from runs.engine.notes import note
from runs.engine.results import ApprovalNeeded
from runs.engine.safe_commit import commit_safely, do_nothing
from runs.engine.sessions import subagent_calls
from runs.engine.turns import call_gate
from runs.engine.turns.call_gate import CallPermit
from runs.lifecycle.approval_rows import REQUEST_AGAIN
from runs.models import AgentRunToolCall
from runs.providers.claude_cli import program_command
from runs.providers.claude_cli.call_requests import CallVerdict
from runs.providers.messages import canonical
from runs.statuses import ToolStatus
from timeline.log import Entry

NEEDS_PERSON = "Not run yet: a person has to decide about this call first. Wait for the decision"


def is_running(drive: Drive, call: AgentRunToolCall) -> bool:
    """Whether the program of this worker already runs the call."""
    return call.status == ToolStatus.RUNNING and drive.session is not None and drive.session.knows(call.call_id)


def prepare(drive: Drive, call: AgentRunToolCall, permit: CallPermit) -> CallResult | None:
    """Send the program the decision on a call.

    Returns the result of a call whose program was ended while a person decided: the program has to request it again.
    """
    session = drive.session
    if session is None:
        return None
    if session.knows(call.call_id):
        session.prepare(call.call_id, _decision(drive, call, permit))
        return None
    if not permit.is_allowed:
        return None
    arguments = "" if call.changed_arguments is None else f" with these arguments: {canonical(call.changed_arguments)}"
    return CallResult(ToolStatus.ERROR, f"{REQUEST_AGAIN}{arguments}", events=permit.events)


def _decision(drive: Drive, call: AgentRunToolCall, permit: CallPermit) -> CallVerdict:
    arguments = None if call.changed_arguments is None else dict(call.changed_arguments)
    # The program requests permission for changed arguments, and no other code answers that request.
    is_free = arguments is not None and program_command.is_free(call.tool_name, drive.settings)
    return CallVerdict(is_allowed=permit.is_allowed or is_free, arguments=arguments)


def tell_result(drive: Drive, call: AgentRunToolCall, result: CallResult) -> None:
    """Send the program the reason why a call was not started, once that is stored."""
    session = drive.session
    if session is not None and not call.starts and session.knows(call.call_id):
        session.tell(call.call_id, CallVerdict(denied=str(result.output)))


def end_subagent(drive: Drive, call: AgentRunToolCall, result: CallResult) -> None:
    """End the record of the sub-agent that worked for a call, unless it continues in the background."""
    is_background = isinstance(call.input, dict) and call.input.get("run_in_background") is True
    if drive.session is not None and call.tool_name in program_command.SUBAGENT_TOOLS and not is_background:
        drive.session.end_subagent(call.call_id, result.status)


def attend(drive: Drive) -> None:
    """Answer the program's requests while it runs a call or answers.

    It may request the next call before it reports the result of this one, or request both at once.
    """
    if drive.session is None:
        return
    subagent_calls.attend(drive)
    for call in drive.open_calls[1:]:
        if call.status == ToolStatus.PLANNED and drive.session.is_asking(call.call_id):
            _decide_ahead(drive, call)


def _decide_ahead(drive: Drive, call: AgentRunToolCall) -> None:
    """Permit a call to start before its turn, or deny it. Keep the reason for its turn."""
    session, tool = drive.session, drive.toolset.get(call.tool_name)
    assert session is not None
    assert tool is not None
    permit = None if tool.asks else call_gate.review(drive, call, tool)
    match permit:
        case ApprovalNeeded() | None:
            # A person decides in the call's turn; until then the program would hold back the results of the other
            # calls.
            session.tell(call.call_id, CallVerdict(denied=NEEDS_PERSON))
        case CallResult():
            note(drive.lease, *permit.events)
            drive.denied_ahead[call.pk] = replace(permit, events=())
            session.tell(call.call_id, CallVerdict(denied=str(permit.output)))
        case CallPermit():
            if permit.changed_arguments is not None:
                call.changed_arguments = dict(permit.changed_arguments)
            commit_start(drive, call, 0, permit.events)
            session.tell(call.call_id, _decision(drive, call, permit))


def commit_start(drive: Drive, call: AgentRunToolCall, attempt: int, before: Sequence[Entry]) -> None:
    """Store a call as running, with the decision made before."""
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
