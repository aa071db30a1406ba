"""Dismiss runs that need a person: failed runs, silent external runs, and external sessions that wait for their user.

A dismissed run or flow run is no longer listed by runs.queries.needs. Its status and its log do not change.
"""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from agentops.accounts.audit import Actor, record
from agentops.accounts.models import Project
from agentops.base import database_clock
from agentops.base.refusals import Conflict
from runs.actions.flow_run_actions import FlowRunAuditAction
from runs.actions.run_actions import RunAuditAction
from runs.models import AgentRun, FlowRun
from runs.queries.flow_needs import failed_flow_runs
from runs.queries.needs import FAILED_FOR, failed_runs
from runs.statuses import RunStatus


class NotDismissable(Conflict):
    """The run cannot be dismissed: it has not failed, and is no external run that is silent or waits."""

    code = "not_dismissable"


def dismiss(actor: Actor, run: AgentRun) -> bool:
    """Dismiss a failed run, or an external run that is silent or waits. Returns False if it was already dismissed.

    Raises `NotDismissable` for other runs. The caller has checked the permission.
    """
    is_silent = run.state is RunStatus.RUNNING and run.source == AgentRun.Source.EXTERNAL
    is_session = run.state is RunStatus.WAITING and run.source != AgentRun.Source.NATIVE
    if not (run.state is RunStatus.FAILED or is_silent or is_session):
        raise NotDismissable(
            f"only failed runs, silent external runs and waiting sessions can be dismissed; this one is {run.status}"
        )
    now = database_clock.now()
    may_continue = is_silent or is_session
    if may_continue and run.log.last_event_at is not None:
        # Not before the last event: the runner's clock may be ahead.
        now = max(now, run.log.last_event_at)
    with transaction.atomic():
        # Guarded by the values that the caller has read, so that only one of two requests dismisses the run. A run that
        # may continue can be dismissed again later.
        changed = AgentRun.objects.filter(pk=run.pk, status=run.status, dismissed_at=run.dismissed_at)
        if (run.dismissed_at is not None and not may_continue) or not changed.update(dismissed_at=now):
            return False
        record(actor, RunAuditAction.RUN_DISMISSED, project=run.project, obj=run, after={"dismissed_at": now})
    return True


def dismiss_flow_run(actor: Actor, flow_run: FlowRun) -> bool:
    """Dismiss a failed flow run. Returns False if it was already dismissed.

    Raises `NotDismissable` for other flow runs. The caller has checked the permission.
    """
    if flow_run.state is not RunStatus.FAILED:
        raise NotDismissable(f"only failed flow runs can be dismissed; this one is {flow_run.status}")
    now = database_clock.now()
    with transaction.atomic():
        if not FlowRun.objects.filter(pk=flow_run.pk, dismissed_at=None).update(dismissed_at=now):
            return False
        after = {"dismissed_at": now}
        record(actor, FlowRunAuditAction.FLOW_RUN_DISMISSED, project=flow_run.project, obj=flow_run, after=after)
    return True


def dismiss_failed(actor: Actor, project: Project, upto: datetime) -> int:
    """Dismiss the listed failed runs and flow runs of a project that had ended by a time. Returns how many."""
    now = database_clock.now()
    with transaction.atomic():
        runs = failed_runs([project.pk]).filter(completed_at__lte=upto).update(dismissed_at=now)
        flow_runs = failed_flow_runs([project.pk], FAILED_FOR).filter(completed_at__lte=upto).update(dismissed_at=now)
        count = runs + flow_runs
        if count:
            after = {"dismissed_at": now, "runs": runs, "flow_runs": flow_runs, "failed_until": upto}
            record(actor, RunAuditAction.RUN_DISMISSED, project=project, obj=project, after=after)
    return count
