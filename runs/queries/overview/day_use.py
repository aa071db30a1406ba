"""The use of a project's daily budgets."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from uuid import UUID

from django.db.models import Q, Sum

from runs.models import AgentRun, TurnUsage
from runs.statuses import RunStatus

_ACTIVE = [status for status in RunStatus if not status.terminal]


def used_since(project_id: UUID, moment: datetime) -> tuple[int, Decimal]:
    """Return the tokens and the cost of the native model calls of a project since `moment`. One query.

    It reads runs that have not ended, or that ended after `moment`. Both conditions have an index.
    """
    native_runs = AgentRun.objects.filter(project=project_id, source=AgentRun.Source.NATIVE)
    runs = native_runs.filter(Q(status__in=_ACTIVE) | Q(completed_at__isnull=False, completed_at__gte=moment))
    turns = TurnUsage.objects.filter(run__in=runs.values("pk"), created_at__gte=moment)
    sums = turns.aggregate(sent=Sum("input_tokens"), received=Sum("output_tokens"), cost=Sum("cost_usd"))
    return (sums["sent"] or 0) + (sums["received"] or 0), sums["cost"] or Decimal(0)
