"""Flow runs that need a person: paused flow runs, flows that failed on their own, and flow runs that no worker moves.

The runs of nodes are separate entries, unless they are paused because of their flow.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models import F, Q, QuerySet
from django.db.models.functions import Coalesce

from agentops.base.database_clock import Now
from runs.models import FlowRun
from runs.models.flows import FlowRunQuerySet
from runs.queries.waiting_for_people import Projects
from runs.statuses import RunStatus


def paused_flow_runs(projects: Projects) -> QuerySet[Any]:
    """Return the paused flow runs. Uses the index `flow_run_unended`. For nearly all, the pause is the last event."""
    rows = FlowRun.objects.filter(project__in=projects, status=RunStatus.PAUSED, completed_at=None)
    return _rows(rows, Coalesce("log__last_event_at", "created_at"))


def failed_flow_runs(projects: Projects, failed_for: timedelta) -> FlowRunQuerySet:
    """Return the undismissed flow runs that failed on their own. Uses the index `flow_run_failures`.

    Flow runs that failed because of a node's run are left out, because that run is an entry.
    """
    return FlowRun.objects.filter(
        project__in=projects,
        status=RunStatus.FAILED,
        failed_run_id=None,
        dismissed_at=None,
        completed_at__gte=Now() - failed_for,
    )


def failed_flow_rows(projects: Projects, failed_for: timedelta) -> QuerySet[Any]:
    """Return the rows of `failed_flow_runs` for the list of entries, with the time of the failure."""
    return _rows(failed_flow_runs(projects, failed_for), F("completed_at"))


def stuck_flow_runs(projects: Projects, queued_for: timedelta, lost_for: timedelta) -> QuerySet[Any]:
    """Return the flow runs that a worker should have advanced, but did not. Uses the index `flow_run_moving`.

    `queued_for` and `lost_for`: how long a queued or any other flow run may be stuck.
    """
    is_late = Q(status=RunStatus.QUEUED, stuck_since__lt=Now() - queued_for)
    is_late |= ~Q(status=RunStatus.QUEUED) & Q(stuck_since__lt=Now() - lost_for)
    rows = FlowRun.objects.filter(project__in=projects).with_stuck_since().filter(is_late)
    return _rows(rows, F("stuck_since"))


def _rows(rows: QuerySet[Any], since: Any) -> QuerySet[Any]:
    """Add the columns of an entry that runs.queries.needs reads."""
    annotated: QuerySet[Any] = rows.annotate(item=F("pk"), of_run=F("pk"), since=since)
    return annotated
