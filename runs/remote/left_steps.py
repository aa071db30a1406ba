"""Steps that an earlier run of the lineage left without an outcome, and how a resumed run continues them.

The pause of the earlier run has closed their calls: a planned one as denied, a running one with an unknown outcome.
"""

from __future__ import annotations

from runs.actions import resume as resuming
from runs.lifecycle import children, creation
from runs.models import AgentRun, AgentRunToolCall, Approval, RemoteStep
from runs.providers.messages import canonical
from runs.remote.holds import RemoteHold
from runs.statuses import Effect, OnChildPause, PauseReason, RunStatus, ToolStatus
from timeline.models import Source


def is_of_lineage(hold: RemoteHold, left: RemoteStep) -> bool:
    """Whether the held run continues the run of the step. A fork starts the step anew: both runs may execute it."""
    return bool(left.run.root_run_id == hold.run.root_run_id)


def is_decided(hold: RemoteHold, left: RemoteStep) -> bool:
    """Whether a person has settled the call of the step before the pause, so that its outcome is known."""
    call = left.call
    if call is None or not is_of_lineage(hold, left):
        return False
    match ToolStatus(call.status):
        case ToolStatus.COMPLETED:
            return True
        case ToolStatus.ERROR:
            return bool(call.resolved_by)
        case ToolStatus.DENIED:
            refused = (Approval.State.DENIED, Approval.State.EXPIRED)
            return Approval.objects.filter(call=call, state__in=refused).exists()
    return False


def is_unknown(left: RemoteStep | None) -> bool:
    """Whether an earlier run may have executed a step that must not be repeated. Also for a fork."""
    call = None if left is None else left.call
    return call is not None and call.status == ToolStatus.UNKNOWN and call.effect == Effect.AT_MOST_ONCE


def approval(hold: RemoteHold, call: AgentRunToolCall, left: RemoteStep | None) -> Approval | None:
    """Return the approval of a call that an earlier run did not start any more; None without one.

    It counts for the same arguments. An approver's changes of them are copied to `call`.
    """
    if left is None or left.call is None or left.call.starts or not is_of_lineage(hold, left):
        return None
    earlier = Approval.objects.filter(call=left.call, state=Approval.State.APPROVED).first()
    if earlier is None or canonical(left.call.input) != canonical(call.input):
        return None
    call.changed_arguments = left.call.changed_arguments
    return earlier


def has_child(left: RemoteStep | None) -> bool:
    """Whether an earlier run has opened the child run of the step."""
    return left is not None and left.call is not None and left.call.child_run_id is not None


def child(hold: RemoteHold, left: RemoteStep | None) -> AgentRun | None:
    """Return the child run for which an earlier run waited, as a child of the held run; None without one.

    If it was paused together with that run, it continues too.
    """
    if left is None or left.call is None or left.call.child_run is None:
        return None
    run = children.newest(left.call.child_run)
    if run.state is RunStatus.PAUSED and run.status_reason == PauseReason.OPERATOR:
        run = resuming.resume(run.pk, by=f"run:{hold.run.pk}", source=Source.WORKER).run
    AgentRun.objects.filter(pk=run.pk).update(parent_run=hold.run, on_pause=OnChildPause.WAIT)
    creation.add_child_event(hold.run, run)
    return run
