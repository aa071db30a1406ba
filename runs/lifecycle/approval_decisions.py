"""Decisions about approvals: by people and programs, and by expiry. No decision opens a new run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

from django.db import transaction

from agentops.accounts import notifications
from agentops.base import database_clock
from agentops.base.redaction.redact import BARE
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.refusals import Conflict, Invalid, NotFound, Refusal
from runs import chaos
from runs.conversation import tool_results, transcript, writes
from runs.conversation.tool_results import CallResult
from runs.conversation.tool_starts import as_object
from runs.database_errors import done_alone
from runs.hooks.deciding import argument_diff
from runs.lifecycle import approval_rows, inbox, moves, session_subagents, transitions
from runs.models import AgentRun, AgentRunToolCall, Approval
from runs.providers.messages import canonical, fits_a_column
from runs.statuses import PauseReason, RunStatus, ToolStatus, WaitReason
from timeline.events.run import RunPaused, RunPhase
from timeline.log import Entry, append
from timeline.models import Source

State = Approval.State
#: Maximum characters of a message, and of changed arguments as JSON.
MAX_MESSAGE = 10_000
MAX_ARGUMENTS = 1_000_000
#: Status reason of a run that returns to the queue after a decision.
REASON = "approval_decided"
DENIED = "A person denied this call, so it was not run."
EXPIRED = "Nobody approved this call in time, so it was not run."
#: The prefix of the placeholder for a redacted secret.
PLACEHOLDER = "[REDACTED:"
#: Maximum number of approvals that a sweep expires.
BATCH = 100


@dataclass(frozen=True)
class Decision:
    """A person's decision. `arguments` replace the call's arguments; None leaves them unchanged."""

    approves: bool
    arguments: Mapping[str, Any] | None = None
    #: Whether the approval applies to all later calls of the tool in this run; in a session, also to its sub-agents'
    #: calls.
    always: bool = False
    #: The message to the model about a denial.
    message: str = ""

    @property
    def state(self) -> Approval.State:
        """The state of an approval with this decision."""
        return State.APPROVED if self.approves else State.DENIED


@dataclass(frozen=True)
class DecisionResult:
    """The decided approval. `is_new`: this request made the decision, and did not repeat an earlier one."""

    approval: Approval
    run: AgentRun
    is_new: bool = True


def decide(run_id: UUID, call_id: UUID, decision: Decision, *, by: str) -> DecisionResult:
    """Approve or deny the call that a run waits for, and queue the run.

    The first of several concurrent decisions counts. Raises `Conflict` with the code `approval_decided` for the others,
    with the decision and its author. If the same person repeats a decision, the repetition succeeds. Also raises
    `RunNotFound`, `Invalid`, and `Conflict` or `NotFound` if the call has no approval.
    """
    _check(decision)
    with transaction.atomic():
        run = inbox.lock_run(run_id)
        approval = Approval.objects.select_related("call__message").filter(run=run, call=call_id).first()
        if approval is None:
            raise _no_approval(run, call_id)
        approval.call.run = approval.run = run
        if approval.state != State.PENDING:
            return _answer_late_decision(approval, run, decision, by)
        if decision.arguments is not None:
            _change_arguments(approval, decision.arguments)
        approval.message = REDACTOR.clean_text(decision.message)[0]
        approval.always = decision.always
        _settle(approval, decision.state, by=by)
        if session_subagents.is_subagent(run):
            session_subagents.continue_run(approval, Source.WEB)  # the program of the session closes the call
        else:
            _carry_out(approval)
        chaos.point("decision.in_transaction")
    return DecisionResult(approval, run)


def _carry_out(approval: Approval) -> None:
    """Close the call if it was denied, and queue the run."""
    if approval.state == State.DENIED:
        _deny(approval)
    else:
        append(approval.run_id, [approval_rows.resolved_event(approval)], source=Source.WEB)
    _queue(approval.run, Source.WEB)


def denial_text(approval: Approval) -> str:
    """Return the result that the model gets for a call that was not approved."""
    return EXPIRED if approval.state == State.EXPIRED else f"{DENIED} {approval.message}".strip()


def expire_due() -> int:
    """End the approvals that have expired by the database's clock. Returns how many. Called by every sweep."""
    due = AgentRun.objects.due_waits().filter(status_reason=WaitReason.APPROVAL)
    return sum(_expire_safely(run_id) for run_id in due.values_list("pk", flat=True)[:BATCH])


def exact_arguments(call: AgentRunToolCall) -> Mapping[str, Any] | str:
    """Return the arguments that the call would run with, not redacted. `call.message` must be loaded."""
    if call.changed_arguments is not None:
        changed: Mapping[str, Any] = call.changed_arguments
        return changed
    parts = [part for part in call.message.content["parts"] if part.get("part_kind") == "tool-call"]
    given = next(part for part in parts if part["tool_call_id"][:256] == call.call_id)["args"]
    return cast("Mapping[str, Any] | str", as_object(given))


def _check(decision: Decision) -> None:
    """Raise `Invalid` if a part of the decision is not allowed or cannot be stored."""
    if len(decision.message) > MAX_MESSAGE:
        raise Invalid(f"the message must have at most {MAX_MESSAGE} characters", pointer="/message")
    if not decision.approves and (decision.arguments is not None or decision.always):
        raise Invalid("a denial accepts neither arguments nor always", pointer="/decision")
    if decision.arguments is None:
        return
    text = canonical(decision.arguments)
    if len(text) > MAX_ARGUMENTS:
        raise Invalid(f"the arguments must have at most {MAX_ARGUMENTS} characters as JSON", pointer="/arguments")
    # The JSON text alone does not tell: a value may contain the six characters with which JSON escapes NUL.
    if not fits_a_column(text) and BARE.clean(cast("Any", decision.arguments))[0] != decision.arguments:
        raise Invalid("the arguments contain a NUL character or an unpaired surrogate", pointer="/arguments")


def _change_arguments(approval: Approval, edited: Mapping[str, Any]) -> None:
    """Store the approver's arguments. Redacted values that the approver left unchanged keep their secret."""
    exact = exact_arguments(approval.call)
    restored = restored_arguments(edited, approval.arguments, exact)
    if PLACEHOLDER in canonical(restored) and PLACEHOLDER not in canonical(exact):
        text = "a value contains the placeholder of a redacted secret: leave the whole value unchanged, or replace it"
        raise Invalid(text, pointer="/arguments")
    changes = argument_diff(exact, restored)
    if changes:
        approval.call.changed_arguments = restored
        approval.call.save(update_fields=["changed_arguments"])
        approval.changes = REDACTOR.clean(cast("Any", changes))[0]


def restored_arguments(edited: Any, redacted: Any, exact: Any) -> Any:
    """Return the edited value, with each part that equals its redacted form replaced by its exact form."""
    if canonical(edited) == canonical(redacted):
        return exact
    if isinstance(edited, Mapping) and isinstance(redacted, dict) and isinstance(exact, Mapping):
        return {name: restored_arguments(value, redacted.get(name), exact.get(name)) for name, value in edited.items()}
    if isinstance(edited, list) and isinstance(redacted, list) and isinstance(exact, list):
        originals = zip(redacted, exact, strict=False)
        return [restored_arguments(value, *next(originals, (None, None))) for value in edited]
    return edited


def _settle(approval: Approval, state: Approval.State, *, by: str = "") -> None:
    """Save the final state of the approval, and the other parts of the decision that the caller has set."""
    approval.state, approval.decided_by, approval.decided_at = state, by[:200], database_clock.now()
    approval.save(update_fields=["state", "decided_by", "decided_at", "message", "always", "changes"])


def _deny(approval: Approval, source: Source = Source.WEB) -> None:
    """Close the call, which was never started, with the denial as its result."""
    call, result = approval.call, CallResult(ToolStatus.DENIED, denial_text(approval))
    position = transcript.last_position(call.run_id) + 1
    event: Entry = approval_rows.resolved_event(approval)
    closed = tool_results.close(call, result, position=position, epoch=None, source=source, before=[event])
    writes.write(closed.commit)


def _queue(run: AgentRun, source: Source) -> None:
    payload = RunPhase(status=RunStatus.QUEUED, reason=REASON)
    transitions.move(run, RunStatus.QUEUED, payload, source=source, reason=REASON, not_before=None)


def _no_approval(run: AgentRun, call_id: UUID) -> Refusal:
    """Return the error for a call without an approval: it does not exist, or needs none."""
    call = AgentRunToolCall.objects.filter(run=run, pk=call_id).first()
    if call is None:
        return NotFound("no such tool call in this run", code="tool_call_not_found")
    return Conflict(
        f"this call is {call.status}, and waits for no approval", code="approval_not_requested", call_status=call.status
    )


def _answer_late_decision(approval: Approval, run: AgentRun, decision: Decision, by: str) -> DecisionResult:
    """Return the result of a decision that repeats the earlier one. Raises `Conflict` for any other decision."""
    is_same = (approval.state, approval.decided_by, approval.always) == (decision.state, by[:200], decision.always)
    if is_same and decision.arguments is None and approval.message == REDACTOR.clean_text(decision.message)[0]:
        return DecisionResult(approval, run, is_new=False)
    facts: dict[str, Any] = {"state": approval.state, "by": approval.decided_by or None, "run_status": run.status}
    if approval.decided_by:
        raise Conflict(f"{approval.decided_by} already {approval.state} this call", code="approval_decided", **facts)
    why = "the approval expired" if approval.state == State.EXPIRED else f"the run is {run.status}"
    raise Conflict(f"this call cannot be decided any more: {why}", code="approval_decided", **facts)


def _expire_safely(run_id: UUID) -> bool:
    """Expire the approval of a run. Returns whether it was pending. An error is logged."""

    def act() -> bool:
        with transaction.atomic():
            return _expire(run_id)

    return done_alone(act, "an approval could not expire", run_id=str(run_id))


def _expire(run_id: UUID) -> bool:
    """Expire the approval of a run, and queue or pause the run. Returns False if it is no longer due."""
    due = AgentRun.objects.due_waits().filter(status_reason=WaitReason.APPROVAL)
    run = due.select_for_update(skip_locked=True, no_key=True, of=("self",)).filter(pk=run_id).first()
    if run is None:
        return False  # decided in the meantime, or another sweep expires it
    approval = Approval.objects.select_related("call__message").get(run=run, state=State.PENDING)
    approval.call.run = approval.run = run
    _settle(approval, State.EXPIRED)
    if approval.pauses_on_expiry:
        _pause(approval)
    else:
        _deny(approval, Source.POLICY)
        _queue(run, Source.POLICY)
    chaos.point("expiry.in_transaction")
    return True


def _pause(approval: Approval) -> None:
    """Pause a run whose approval has expired, and notify people."""
    run, reason = approval.run, PauseReason.ESCALATED
    detail = f"Nobody decided about {approval.tool_name} until {approval.expires_at:%Y-%m-%d %H:%M} UTC."
    transitions.move(
        run,
        RunStatus.PAUSED,
        RunPaused(reason=reason, detail=detail),
        source=Source.POLICY,
        reason=reason,
        events_before=[approval_rows.resolved_event(approval)],
        not_before=None,
    )
    moves.notify_members(run, notifications.Kind.ESCALATED, "Escalated", detail)
