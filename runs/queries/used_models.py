"""The models of a project's newest runs, and whether their calls had a price."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.db.models import Count, Q

from runs.models import AgentRun, TurnUsage
from runs.models.run import CostSource

#: Number of newest runs that are looked at.
MAX_RUNS = 500
MAX_MODELS = 100


@dataclass(frozen=True)
class UsedModel:
    """A model, by the name in its answers."""

    name: str
    calls: int
    #: Calls whose cost is not known.
    unpriced: int


def used_models(project_id: UUID) -> list[UsedModel]:
    """Return the models of the newest runs, those with most calls without a price first. Two queries."""
    newest = AgentRun.objects.filter(project=project_id).order_by("-created_at", "-pk").values_list("pk", flat=True)
    rows = (
        TurnUsage.objects.filter(run__in=list(newest[:MAX_RUNS])).exclude(model="")
        .values_list("model")
        .annotate(calls=Count("pk"), unpriced=Count("pk", filter=Q(cost_source=CostSource.UNKNOWN)))
        .order_by("-unpriced", "model")
    )  # fmt: skip
    return [UsedModel(*row) for row in rows[:MAX_MODELS]]
