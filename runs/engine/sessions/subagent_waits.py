"""Calls of sub-agents that wait for a person. The program continues during the wait and takes answers in any order."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from uuid_utils.compat import uuid7

from runs import chaos
from runs.engine.leases import Lease
from runs.engine.safe_commit import commit_safely, do_nothing
from runs.lifecycle import subagent_approvals
from runs.lifecycle.approval_decisions import PLACEHOLDER, denial_text, restored_arguments
from runs.lifecycle.approval_rows import ApprovalRequest
from runs.models import AgentRun, AgentRunToolCall, Approval
from runs.providers.claude_cli.call_requests import CallVerdict, SubagentRequest
from runs.providers.messages import canonical

State = Approval.State
#: Seconds between two checks for decisions.
LOOK_S = 0.5
NOT_STORED = "a person has to approve this, and the program has not reported the call: leave it to the main agent"
MISPLACED = "the approved arguments contain the placeholder of a redacted secret"


@dataclass
class _Wait:
    """A call that waits, and the program's request about it."""

    call: AgentRunToolCall
    asked: ApprovalRequest
    #: Whether hooks have changed the arguments.
    is_changed: bool
    requests: list[SubagentRequest]
    approval_id: UUID = field(default_factory=uuid7)
    is_stored: bool = False


class SubagentWaits:
    """The calls of a session's sub-agents that wait for a person. A sub-agent waits for one decision at a time."""

    def __init__(self, run: AgentRun, lease: Lease) -> None:
        self._run, self._lease = run, lease
        self._waits: dict[str, _Wait] = {}
        self._next_look = 0.0

    def join(self, request: SubagentRequest) -> bool:
        """Add a further request about a waiting call to its wait. Returns whether that call waits."""
        wait = self._waits.get(request.call_id)
        if wait is not None:
            wait.requests.append(request)
        return wait is not None

    def add(self, request: SubagentRequest, asked: ApprovalRequest, *, is_changed: bool) -> CallVerdict | None:
        """Make a call wait for a person. Returns the verdict if an approval for all calls of the tool exists."""
        call = subagent_approvals.call_of(self._run, request.call_id)
        if call is None:
            return CallVerdict(denied=NOT_STORED)
        if subagent_approvals.approved_in_session(self._run, call.tool_name) is not None:
            return CallVerdict(is_allowed=True, arguments=dict(_object(asked.arguments)) if is_changed else None)
        self._waits[request.call_id] = _Wait(call, asked, is_changed, [request])
        self._next_look = 0.0
        return None

    def withdraw(self, request_ids: set[str]) -> None:
        """Cancel the approvals of calls whose requests the program has withdrawn."""
        for call_id, wait in list(self._waits.items()):
            wait.requests = [one for one in wait.requests if one.request_id not in request_ids]
            if not wait.requests:
                self._end([wait.approval_id] if wait.is_stored else [], State.CANCELLED)
                del self._waits[call_id]

    def take_decided(self) -> Iterator[tuple[SubagentRequest, CallVerdict]]:
        """Store new waits, and yield the requests decided since the last check, with the verdict."""
        if not self._waits or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_S
        stored = [wait.approval_id for wait in self._waits.values() if wait.is_stored]
        if overdue := subagent_approvals.overdue(stored):
            self._end(overdue, State.EXPIRED)
        settled = subagent_approvals.settled(stored)
        for call_id, wait in list(self._waits.items()):
            approval = settled.get(wait.approval_id)
            if approval is not None:
                del self._waits[call_id]
                verdict = _verdict(approval, wait)
                yield from ((request, verdict) for request in wait.requests)
        for wait in self._waits.values():
            wait.is_stored = wait.is_stored or self._store(wait)

    def _store(self, wait: _Wait) -> bool:
        standing = Approval.objects.filter(pk=wait.approval_id)
        write = partial(
            subagent_approvals.request, self._run.pk, self._lease.epoch, wait.approval_id, wait.call, wait.asked,
            is_changed=wait.is_changed,
        )  # fmt: skip
        is_stored = commit_safely(write, is_committed=standing.exists, read_result=lambda: True, lease=self._lease)
        chaos.point("session.approval_requested")
        return is_stored

    def _end(self, approval_ids: list[UUID], state: Approval.State) -> None:
        # Only pending approvals are ended, so that a repetition does nothing.
        write = partial(subagent_approvals.end, self._run.pk, self._lease.epoch, approval_ids, state=state)
        commit_safely(write, is_committed=lambda: False, read_result=do_nothing, lease=self._lease)


def _verdict(approval: Approval, wait: _Wait) -> CallVerdict:
    """Return the answer to the program.

    The stored arguments are redacted, so secrets are taken from the arguments of the program's request.
    """
    if approval.state != State.APPROVED:
        return CallVerdict(denied=denial_text(approval))
    if not approval.changes:
        return CallVerdict(is_allowed=True, arguments=dict(_object(wait.asked.arguments)) if wait.is_changed else None)
    arguments = restored_arguments(approval.call.changed_arguments, approval.arguments, wait.asked.arguments)
    if PLACEHOLDER in canonical(arguments) and PLACEHOLDER not in canonical(wait.asked.arguments):
        return CallVerdict(denied=f"Denied by the approval: {MISPLACED}")
    return CallVerdict(is_allowed=True, arguments=dict(arguments))


def _object(arguments: Mapping[str, Any] | str) -> Mapping[str, Any]:
    assert isinstance(arguments, Mapping), "the program sends objects"
    return arguments
