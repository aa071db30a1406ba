"""What the runs of projects have cost since midnight UTC."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

from django.db.models import Q, Sum

from runs.models import AgentRun, TurnUsage
from runs.statuses import RunStatus

_UNENDED = [status.value for status in RunStatus if not status.terminal]


def day_costs(project_ids: Collection[UUID], now: datetime) -> dict[UUID, Decimal]:
    """Return the cost of the day's model calls by project. Calls without a known cost do not count.

    One query: the runs by the indexes `run_list_by_status` and `run_retention`, their calls by `turn_usage_list`.
    """
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    runs = AgentRun.objects.filter(project__in=project_ids).exclude(source=AgentRun.Source.IMPORT)
    recent = runs.filter(Q(status__in=_UNENDED) | Q(completed_at__isnull=False, completed_at__gte=midnight))
    turns = TurnUsage.objects.filter(run__in=recent.values("pk"), created_at__gte=midnight)
    rows = turns.order_by().values_list("run__project").annotate(cost=Sum("cost_usd"))
    return {project_id: cost for project_id, cost in rows if cost is not None}
