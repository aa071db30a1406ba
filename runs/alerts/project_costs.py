"""The cost of projects since midnight UTC."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

from django.db.models import Q, Sum

from runs.models import AgentRun, TurnUsage
from runs.statuses import RunStatus

Source = AgentRun.Source
_REPORTED = (Source.EXTERNAL, Source.OTLP)
_UNENDED = [status.value for status in RunStatus if not status.terminal]


def day_costs(project_ids: Collection[UUID], now: datetime) -> dict[UUID, Decimal]:
    """Return the cost of the day by project. Model calls without a known cost do not count. Two queries.

    For native runs, sums the day's model calls: runs by the indexes `run_list_by_status` and `run_retention`, calls by
    `turn_usage_list`. Many external runners report a cost only when a run ends, so an external run counts with its
    total cost on the day on which it began (`run_list_by_source`).
    """
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    runs = AgentRun.objects.filter(project__in=project_ids)
    native = runs.filter(
        Q(status__in=_UNENDED) | Q(completed_at__isnull=False, completed_at__gte=midnight), source=Source.NATIVE
    )
    turns = TurnUsage.objects.filter(run__in=native.values("pk"), created_at__gte=midnight)
    others = runs.exclude(source=Source.NATIVE).filter(source__in=_REPORTED, created_at__gte=midnight)
    costs: Counter[UUID] = Counter()
    for rows in (turns.order_by().values_list("run__project"), others.order_by().values_list("project")):
        for project_id, cost in rows.annotate(cost=Sum("cost_usd")):
            costs[project_id] += cost or 0
    return {project_id: Decimal(cost) for project_id, cost in costs.items()}
