"""Approvals of calls of a session's sub-agents. The sub-agent's run waits, and so do its program and the worker.

An approval is decided like any other (runs.lifecycle.approval_decisions). The worker that holds the program polls for
the decision and sends it to the program, which runs the call and reports its result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast
from uuid import UUID

from django.db import transaction
from django.db.models import Q

from agentops.base import database_clock
from agentops.base.database_clock import Now
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.lifecycle import approval_rows, reported_runs, session_subagents
from runs.lifecycle.approval_rows import ApprovalRequest
from runs.lifecycle.moves import PHASES
from runs.models import AgentRun, AgentRunToolCall, Approval
from runs.statuses import RunStatus, WaitReason
from timeline import log
from timeline.events.run import RunPhase, RunWaiting
from timeline.log import Entry
from timeline.models import Source

State = Approval.State
#: Status reason of a sub-agent's run that continues.
REASON = "approval_decided"


def call_of(run: AgentRun, call_id: str) -> AgentRunToolCall | None:
    """Return the newest stored call of a sub-agent of a run, by the program's ID; None without one."""
    calls = AgentRunToolCall.objects.filter(run__in=session_subagents.subagents_of(run), call_id=call_id)
    return calls.select_related("run").order_by("-pk").first()


def approved_in_session(run: AgentRun, tool_name: str) -> Approval | None:
    """Return the approval for all calls of the tool in a session, if there is one.

    An approval given for the main agent or for a sub-agent applies to all agents of the session, as in the program.
    """
    of_session = Q(run=run) | Q(run__in=session_subagents.subagents_of(run))
    return Approval.objects.filter(of_session, tool_name=tool_name, state=State.APPROVED, always=True).first()


def request(
    run_id: UUID, epoch: int, approval_id: UUID, call: AgentRunToolCall, asked: ApprovalRequest, *, is_changed: bool
) -> bool:
    """Make the run of a sub-agent wait for the approval of its call. Returns False if it waits for another approval.

    `is_changed`: hooks have changed the arguments. `run_id` and `epoch` identify the lease of the session. Raises
    `LeaseLost`.
    """
    with transaction.atomic():
        log.hold(run_id, epoch)
        child = AgentRun.objects.select_for_update(no_key=True, of=("self",)).get(pk=call.run_id)
        if approval_rows.is_pending(child):
            return False
        approval = approval_rows.new_approval(child, call, asked)
        approval.pk = approval_id
        if is_changed:
            changed = REDACTOR.clean(cast("Any", asked.arguments))[0]
            AgentRunToolCall.objects.filter(pk=call.pk).update(changed_arguments=changed)
        approval_rows.save_request(approval)
        log.append(child.pk, [approval_rows.requested_event(approval)], source=Source.POLICY)
        waiting = RunWaiting(reason=WaitReason.APPROVAL, until=approval.expires_at)
        _report(child, RunStatus.WAITING, Entry(waiting, ref_id=call.pk), Source.POLICY, WaitReason.APPROVAL)
    return True


def go_on(approval: Approval, source: Source) -> None:
    """Store the end of an approval and continue the sub-agent's run, in the caller's transaction."""
    log.append(approval.run_id, [approval_rows.resolved_event(approval)], source=source)
    phase = RunPhase(status=RunStatus.RUNNING, reason=REASON)
    _report(approval.run, RunStatus.RUNNING, Entry(phase), source)


def end(run_id: UUID, epoch: int, approval_ids: Sequence[UUID], *, state: Approval.State) -> None:
    """End pending approvals that have timed out (`expired`), or that the program no longer needs (`cancelled`).

    Raises `LeaseLost`.
    """
    for approval_id in approval_ids:
        with transaction.atomic():
            log.hold(run_id, epoch)
            rows = Approval.objects.filter(pk=approval_id)
            child_id = rows.values_list("run", flat=True).get()
            child = AgentRun.objects.select_for_update(no_key=True, of=("self",)).get(pk=child_id)
            due = {"expires_at__lte": Now()} if state == State.EXPIRED else {}
            approval = rows.filter(state=State.PENDING, **due).select_related("call").first()
            if approval is None:
                continue  # decided in the meantime
            approval.run = child
            approval.state, approval.decided_at = state, database_clock.now()
            approval.save(update_fields=["state", "decided_at"])
            go_on(approval, Source.POLICY)


def settled(approval_ids: Sequence[UUID]) -> Mapping[UUID, Approval]:
    """Return the approvals that are no longer pending, with their calls."""
    rows = Approval.objects.filter(pk__in=approval_ids).exclude(state=State.PENDING)
    return {approval.pk: approval for approval in rows.select_related("call")}


def overdue(approval_ids: Sequence[UUID]) -> list[UUID]:
    """Return the pending approvals that have expired, by the database's clock."""
    rows = Approval.objects.filter(pk__in=approval_ids, state=State.PENDING, expires_at__lte=Now())
    return list(rows.values_list("pk", flat=True))


def _report(child: AgentRun, to: RunStatus, entry: Entry, source: Source, reason: str = "") -> None:
    entry = Entry(entry.payload, ref_id=entry.ref_id, phase=PHASES[to])
    reported_runs.report(child, to, entry, source=source, reason=reason)
