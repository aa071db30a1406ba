"""Answers of AG-UI clients to interrupts: a text, a decision about a tool call, or a cancellation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from agentops.accounts.access import Principal
from agentops.base.refusals import Conflict, Invalid
from runs.actions import approvals, run_actions, unknown_calls
from runs.actions.unknown_calls import OutcomeChoice
from runs.lifecycle.approval_decisions import Decision
from runs.models import AgentRun, Approval
from runs.statuses import RunStatus, WaitReason
from timeline import log
from timeline.events import EventType

#: The JSON pointer to the value of an answer in a request. A request answers one interrupt.
PAYLOAD = "/resume/0/payload"
_INTERRUPTING = (EventType.RUN_WAITING, EventType.RUN_PAUSED)


@dataclass(frozen=True)
class InterruptAnswer:
    """The client's answer to an interrupt. `payload` is any JSON value."""

    interrupt_id: str
    is_cancelled: bool
    payload: Any = None

    @property
    def text(self) -> str | None:
        """The answer as text for the agent; None without one."""
        if self.is_cancelled or self.payload is None:
            return None
        return self.payload if isinstance(self.payload, str) else json.dumps(self.payload, ensure_ascii=False)


def open_interrupt(run: AgentRun | None) -> str | None:
    """Return the ID of the interrupt that the run has open; None if it neither waits nor is paused."""
    if run is None or run.state not in (RunStatus.WAITING, RunStatus.PAUSED):
        return None
    last = log.events_of(run.pk).filter(type__in=_INTERRUPTING).order_by("-seq").first()
    return None if last is None else f"{run.pk}.{last.seq}"


def settled_interrupt(run: AgentRun | None, answer: InterruptAnswer) -> int:
    """Return the sequence number of an interrupt that was settled without this answer, in the log of the run.

    Returns 0 if the interrupt belongs to a run that this one continues. Clients have to answer an interrupt before they
    send anything else. If another client has settled it, they cancel it. Raises `Conflict` with the code
    `interrupt_not_open` for any other answer, because it would be lost.
    """
    run_id, _, seq = answer.interrupt_id.partition(".")
    is_known = run is not None and seq.isdecimal() and run_id in _lineage(run) and _has_event(UUID(run_id), int(seq))
    if not is_known or not answer.is_cancelled:
        text = "the thread does not wait for an answer to this interrupt"
        text += ": somebody has settled it. Cancel it to follow the run" if is_known else ""
        raise Conflict(text, code="interrupt_not_open")
    return int(seq) if run is not None and run_id == str(run.pk) else 0


def _lineage(run: AgentRun) -> set[str]:
    """Return the IDs of a run and of the runs that it continues."""
    return {str(pk) for pk in AgentRun.objects.filter(root_run=run.root_run_id).values_list("pk", flat=True)}


def _has_event(run_id: UUID, seq: int) -> bool:
    """Whether the log of a run has an event with this number. A client may send any number."""
    return log.events_of(run_id).filter(seq=seq).exists()


def is_decision(run: AgentRun) -> bool:
    """Whether the run waits for a decision about a tool call."""
    return run.state is RunStatus.WAITING and run.status_reason in (WaitReason.APPROVAL, WaitReason.UNKNOWN_TOOL)


def decide(actor: Principal, run: AgentRun, answer: InterruptAnswer) -> AgentRun:
    """Decide about the tool call that a run waits for, and return the run. Raises `Refusal`."""
    if run.status_reason == WaitReason.APPROVAL:
        approval = Approval.objects.filter(run=run, state=Approval.State.PENDING).first()
        if approval is None:  # it was decided, or has expired, since the run was read
            raise Conflict("the tool call does not wait for a decision any more", code="interrupt_not_open")
        return approvals.decide(actor, run, approval.call_id, _decision(answer)).run
    if answer.is_cancelled:
        return run_actions.stop(actor, run).run
    choice, text = _outcome(answer.payload)
    return run_actions.resolve_call(actor, run, _unknown_call(run), choice, text=text).run


def _unknown_call(run: AgentRun) -> UUID:
    """Return the ID of the call that the interrupt is about. Several unknown outcomes are resolved one by one."""
    waits = log.events_of(run.pk).filter(type=EventType.RUN_WAITING).order_by("-seq")
    call_ids = list(unknown_calls.unresolved(run).values_list("pk", flat=True))
    if not call_ids:
        raise Conflict("no outcome of a tool call is unknown any more", code="interrupt_not_open")
    interrupting_id = waits.values_list("ref_id", flat=True).first()
    return interrupting_id if interrupting_id in call_ids else call_ids[0]


def _decision(answer: InterruptAnswer) -> Decision:
    """Return the decision about an approval. A cancelled interrupt denies the call."""
    if answer.is_cancelled:
        return Decision(approves=False)
    payload = {"approved": answer.payload} if isinstance(answer.payload, bool) else answer.payload
    approves = _member(payload, "approved", bool)
    if approves is None:
        raise Invalid("the payload must be true, false, or an object with approved: true or false", pointer=PAYLOAD)
    return Decision(
        approves=approves,
        arguments=_member(payload, "editedArgs", dict) if approves else None,
        always=approves and bool(_member(payload, "always", bool)),
        message="" if approves else _member(payload, "message", str) or "",
    )


def _outcome(payload: Any) -> tuple[OutcomeChoice, str | None]:
    """Return the choice about an unknown outcome, and its text. Raises `Invalid`."""
    choices = [choice.value for choice in OutcomeChoice]
    choice = _member(payload, "choice", str)
    if choice not in choices:
        raise Invalid(f"the payload must be an object with a choice: {', '.join(choices)}", pointer=PAYLOAD)
    return OutcomeChoice(choice), _member(payload, "text", str)


def _member(payload: Any, name: str, kind: type) -> Any:
    """Return a member of an object; None without it. Raises `Invalid` if the member has another type."""
    value = payload.get(name) if isinstance(payload, Mapping) else None
    if value is not None and not isinstance(value, kind):
        raise Invalid(f"{name} has the wrong type", pointer=f"{PAYLOAD}/{name}")
    return value
