"""Sub-agents of a session: the interface for storing them as child runs, and their calls that wait for a person.

Another package registers the writer of the records. The program continues during a wait. It takes answers in any order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol
from uuid import UUID

from uuid_utils.compat import uuid7

from runs import chaos
from runs.engine.leases import Lease
from runs.engine.safe_commit import commit_safely, do_nothing
from runs.lifecycle import session_subagents
from runs.lifecycle.approval_decisions import PLACEHOLDER, denial_text, restored_arguments
from runs.lifecycle.approval_rows import ApprovalRequest
from runs.models import AgentRun, AgentRunToolCall, Approval
from runs.providers.claude_cli.program_messages import CallVerdict, SubagentRequest
from runs.providers.messages import canonical
from runs.statuses import RunStatus

Line = Mapping[str, Any]


class SubagentRecords(Protocol):
    """The records of a run's sub-agents. Each method writes in a separate transaction, and raises `LeaseLost`."""

    def add(self, lines: Sequence[Line]) -> None:
        """Store lines of sub-agents. Each line names the call that they work for."""
        ...

    def end(self, call_id: str, status: RunStatus) -> None:
        """End the sub-agent of a call, if there is one."""
        ...

    def end_all(self) -> None:
        """End the sub-agents that are still open, because their program has ended."""
        ...


#: Returns the records of a run's sub-agents, for a run ID and the epoch of the worker that holds the run.
Factory = Callable[[UUID, int], SubagentRecords]
_factory: Factory | None = None


def use_records(factory: Factory) -> None:
    """Register the writer of the records."""
    global _factory
    _factory = factory


def records_of(run_id: UUID, epoch: int) -> SubagentRecords:
    """Return the records of the sub-agents of a run that this worker holds with an epoch."""
    assert _factory is not None, "runs.worker registers who writes them"
    return _factory(run_id, epoch)


State = Approval.State
#: Seconds between two checks for decisions.
CHECK_S = 0.5
NOT_STORED = "a person has to approve this, and the program has not reported the call: leave it to the main agent"
MISPLACED = "the approved arguments contain the placeholder of a redacted secret"


@dataclass
class _Wait:
    """A call that waits, and the program's requests about it."""

    call: AgentRunToolCall
    approval_request: ApprovalRequest
    #: Whether hooks have changed the arguments.
    is_changed: bool
    requests: list[SubagentRequest]
    approval_id: UUID = field(default_factory=uuid7)
    #: Whether the approval is stored, and the sub-agent's run waits.
    is_stored: bool = False


class SubagentWaits:
    """The calls of a session's sub-agents that wait for a person. A sub-agent waits for one decision at a time."""

    def __init__(self, run: AgentRun, lease: Lease) -> None:
        self._run, self._lease = run, lease
        self._waits: dict[str, _Wait] = {}
        self._next_check = 0.0

    def join(self, request: SubagentRequest) -> bool:
        """Add a further request about a waiting call to its wait. Returns whether that call waits."""
        wait = self._waits.get(request.call_id)
        if wait is not None:
            wait.requests.append(request)
        return wait is not None

    def add(
        self, request: SubagentRequest, approval_request: ApprovalRequest, *, is_changed: bool
    ) -> CallVerdict | None:
        """Make a call wait for a person, and return None.

        Returns the verdict instead if the call is not stored, or if an approval for all calls of the tool exists.
        """
        call = session_subagents.call_of(self._run, request.call_id)
        if call is None:
            return CallVerdict(denied=NOT_STORED)
        if session_subagents.approved_in_session(self._run, call.tool_name) is not None:
            arguments = dict(_object(approval_request.arguments)) if is_changed else None
            return CallVerdict(is_allowed=True, arguments=arguments)
        self._waits[request.call_id] = _Wait(call, approval_request, is_changed, [request])
        self._next_check = 0.0
        return None

    def withdraw(self, request_ids: set[str]) -> None:
        """Cancel the approvals of calls whose requests the program has withdrawn."""
        for call_id, wait in list(self._waits.items()):
            wait.requests = [one for one in wait.requests if one.request_id not in request_ids]
            if not wait.requests:
                self._end([wait.approval_id] if wait.is_stored else [], State.CANCELLED)
                del self._waits[call_id]

    def take_decided(self) -> Iterator[tuple[SubagentRequest, CallVerdict]]:
        """Store new waits, and yield the requests decided since the last check, each with its verdict.

        Checks at most every `CHECK_S` seconds, and ends overdue approvals.
        """
        if not self._waits or time.monotonic() < self._next_check:
            return
        self._next_check = time.monotonic() + CHECK_S
        stored = [wait.approval_id for wait in self._waits.values() if wait.is_stored]
        if overdue := session_subagents.overdue_approvals(stored):
            self._end(overdue, State.EXPIRED)
        settled = session_subagents.settled_approvals(stored)
        for call_id, wait in list(self._waits.items()):
            approval = settled.get(wait.approval_id)
            if approval is not None:
                del self._waits[call_id]
                verdict = _verdict(approval, wait)
                yield from ((request, verdict) for request in wait.requests)
        for wait in self._waits.values():
            wait.is_stored = wait.is_stored or self._store(wait)

    def _store(self, wait: _Wait) -> bool:
        """Store the approval of a wait. Returns False if the sub-agent's run waits for another approval."""
        stored = Approval.objects.filter(pk=wait.approval_id)
        write = partial(
            session_subagents.request_approval,
            self._run.pk,
            self._lease.epoch,
            wait.approval_id,
            wait.call,
            wait.approval_request,
            is_changed=wait.is_changed,
        )
        is_stored = commit_safely(write, is_committed=stored.exists, read_result=lambda: True, lease=self._lease)
        chaos.point("session.approval_requested")
        return is_stored

    def _end(self, approval_ids: list[UUID], state: Approval.State) -> None:
        # Only pending approvals are ended, so that a repetition does nothing.
        write = partial(session_subagents.end_approvals, self._run.pk, self._lease.epoch, approval_ids, state=state)
        commit_safely(write, is_committed=lambda: False, read_result=do_nothing, lease=self._lease)


def _verdict(approval: Approval, wait: _Wait) -> CallVerdict:
    """Return the verdict of a decided approval.

    The stored arguments are redacted, so secrets are taken from the arguments of the program's request.
    """
    requested = wait.approval_request.arguments
    if approval.state != State.APPROVED:
        return CallVerdict(denied=denial_text(approval))
    if not approval.changes:
        return CallVerdict(is_allowed=True, arguments=dict(_object(requested)) if wait.is_changed else None)
    arguments = restored_arguments(approval.call.changed_arguments, approval.arguments, requested)
    if PLACEHOLDER in canonical(arguments) and PLACEHOLDER not in canonical(requested):
        return CallVerdict(denied=f"Denied by the approval: {MISPLACED}")
    return CallVerdict(is_allowed=True, arguments=dict(arguments))


def _object(arguments: Mapping[str, Any] | str) -> Mapping[str, Any]:
    assert isinstance(arguments, Mapping), "the program sends objects"
    return arguments
