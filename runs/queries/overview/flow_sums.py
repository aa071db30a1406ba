"""Sums for the flows of a project: unended flow runs by status, and outcomes of ended ones."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from django.db.models import Count

from agentops.accounts.models import Project
from runs.models import FlowRun
from runs.queries.overview.ended_runs import Sums


def unended_by_status(project: Project) -> Mapping[str, int]:
    """Return the number of flow runs that have not ended, by status. One query, by the index `flow_run_unended`."""
    rows = FlowRun.objects.filter(project=project, completed_at=None).values_list("status")
    return dict(rows.annotate(number=Count("pk")).order_by())


def ended_by_flow(project: Project, since: datetime) -> Mapping[str, Sums]:
    """Return the outcomes of the flow runs that ended since a time, by flow. One query, by `flow_run_retention`.

    Outcomes only: tokens, cost and durations belong to the runs of the nodes. Deleted flows have no name.
    """
    ended = FlowRun.objects.filter(project=project, completed_at__isnull=False, completed_at__gte=since)
    sums: dict[str, Sums] = {}
    for slug, status, number in ended.values_list("flow__slug", "status").annotate(number=Count("pk")).order_by():
        sums.setdefault(slug or "", Sums()).by_status[status] = number
    return sums
