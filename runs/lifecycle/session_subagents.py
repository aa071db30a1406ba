"""Sub-agents of a session: child runs that the program of a session reports. They end with their program at the latest.

While a sub-agent's call waits for an approval, the sub-agent's run has the status `waiting`, but its program and the
worker keep running. The approval is decided like any other (runs.lifecycle.approval_decisions). The worker that holds
the program polls for the decision and sends it to the program, which runs the call and reports its result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from django.db import transaction
from django.db.models import Q

from agentops.base import database_clock
from agentops.base.database_clock import Now
from runs.lifecycle import approval_rows, reported_runs
from runs.lifecycle.approval_rows import ApprovalRequest
from runs.lifecycle.moves import PHASES
from runs.models import AgentRun, AgentRunToolCall, Approval
from runs.models.querysets import RunQuerySet
from runs.statuses import TERMINAL, RunStatus, WaitReason
from timeline import log
from timeline.events.run import RunPhase, RunStopped, RunWaiting
from timeline.events.work import ChildRunCompleted
from timeline.log import Entry
from timeline.models import Phase, Source

#: The prefix of the external IDs of sub-agents' runs.
PREFIX = "subagent:"
#: The provider whose runs have sub-agents.
_PROVIDER = "claude_cli"


def run_ref(run_id: UUID, call_id: str) -> str:
    """Return the external ID of the run of the sub-agent that works for a call."""
    return f"{PREFIX}{run_id}:{call_id}"[:200]


def subagents_of(run: AgentRun) -> RunQuerySet:
    """Return the runs of all sub-agents of a session's run, including nested ones."""
    return AgentRun.objects.filter(project=run.project_id, external_id__startswith=run_ref(run.pk, ""))


def is_subagent(run: AgentRun) -> bool:
    """Whether the run belongs to a sub-agent of a session that a worker holds."""
    return run.source == AgentRun.Source.IMPORT and (run.external_id or "").startswith(PREFIX)


def is_of_session(run: AgentRun) -> bool:
    """Whether the run is a session of a program, or belongs to a sub-agent of a session."""
    return run.agent_config.get("provider") == _PROVIDER or is_subagent(run)


def end_all(run: AgentRun, *, source: Source, epoch: int | None) -> None:
    """Stop the sub-agents of a run that ends or pauses, in the transaction of its move.

    Normally their worker has ended them before. It may have died, and no other worker may claim the run again. Sends
    no query for runs without a session.
    """
    if run.agent_config.get("provider") != _PROVIDER:
        return
    unended = subagents_of(run).exclude(status__in=TERMINAL)
    if not unended.exists():
        return
    # Lock the log before the rows, in the same order as the worker that stores lines: see runs.external.session_agents.
    log.lock(run.pk)
    for child in unended.select_for_update(no_key=True, of=("self",)).order_by("pk"):
        entry = Entry(RunStopped(reason="session_ended"), phase=Phase.STOPPED)
        # Written as if its program had reported it, without an epoch: no worker holds the sub-agent's run.
        reported_runs.report(child, RunStatus.STOPPED, entry, source=Source.IMPORT, reason="session_ended")
        call = AgentRunToolCall.objects.filter(run=run, child_run=child).first()
        if call is not None:
            log.append(run.pk, [completed_event(child, call)], source=source, epoch=epoch)


def completed_event(child: AgentRun, call: AgentRunToolCall) -> Entry:
    """Return the event of the end of a sub-agent, for the log of the run whose call it works for."""
    payload = ChildRunCompleted(
        run_id=str(child.pk),
        agent=str(child.agent_config.get("agent_id")),
        call_id=call.call_id,
        status=child.status,
        summary=child.summary or None,
        steps=child.step_count,
        cost_usd=None if child.cost_usd is None else str(child.cost_usd),
    )
    return Entry(payload, step=call.step_number, ref_id=child.pk)


State = Approval.State
#: Status reason of a sub-agent's run that continues.
REASON = "approval_decided"


def call_of(run: AgentRun, call_id: str) -> AgentRunToolCall | None:
    """Return the newest stored call with this ID of a run's sub-agents; None without one."""
    calls = AgentRunToolCall.objects.filter(run__in=subagents_of(run), call_id=call_id)
    return calls.select_related("run").order_by("-pk").first()


def approved_in_session(run: AgentRun, tool_name: str) -> Approval | None:
    """Return the approval for all calls of the tool in a session; None without one.

    An approval given for the main agent or for a sub-agent applies to all agents of the session, as in the program.
    """
    of_session = Q(run=run) | Q(run__in=subagents_of(run))
    return Approval.objects.filter(of_session, tool_name=tool_name, state=State.APPROVED, always=True).first()


def request_approval(
    run_id: UUID, epoch: int, approval_id: UUID, call: AgentRunToolCall, request: ApprovalRequest, *, is_changed: bool
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
        approval = approval_rows.new_approval(child, call, request)
        approval.pk = approval_id
        if is_changed:
            # The new approval has the arguments redacted.
            AgentRunToolCall.objects.filter(pk=call.pk).update(changed_arguments=approval.arguments)
        approval_rows.save_request(approval)
        log.append(child.pk, [approval_rows.requested_event(approval)], source=Source.POLICY)
        waiting = RunWaiting(reason=WaitReason.APPROVAL, until=approval.expires_at)
        _report(child, RunStatus.WAITING, Entry(waiting, ref_id=call.pk), Source.POLICY, WaitReason.APPROVAL)
    return True


def continue_run(approval: Approval, source: Source) -> None:
    """Append the end of an approval, and continue the sub-agent's run, in the caller's transaction."""
    log.append(approval.run_id, [approval_rows.resolved_event(approval)], source=source)
    phase = RunPhase(status=RunStatus.RUNNING, reason=REASON)
    _report(approval.run, RunStatus.RUNNING, Entry(phase), source)


def end_approvals(run_id: UUID, epoch: int, approval_ids: Sequence[UUID], *, state: Approval.State) -> None:
    """End pending approvals that have timed out (`expired`), or that the program no longer needs (`cancelled`).

    Approvals that were decided in the meantime stay as they are. Raises `LeaseLost`.
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
            continue_run(approval, Source.POLICY)


def settled_approvals(approval_ids: Sequence[UUID]) -> Mapping[UUID, Approval]:
    """Return the approvals that are no longer pending, with their calls, by ID."""
    rows = Approval.objects.filter(pk__in=approval_ids).exclude(state=State.PENDING)
    return {approval.pk: approval for approval in rows.select_related("call")}


def overdue_approvals(approval_ids: Sequence[UUID]) -> list[UUID]:
    """Return the IDs of the pending approvals that have expired by the database's clock."""
    rows = Approval.objects.filter(pk__in=approval_ids, state=State.PENDING, expires_at__lte=Now())
    return list(rows.values_list("pk", flat=True))


def _report(child: AgentRun, to: RunStatus, entry: Entry, source: Source, reason: str = "") -> None:
    reported_runs.report(child, to, replace(entry, phase=PHASES[to]), source=source, reason=reason)
