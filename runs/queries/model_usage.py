"""What a run, and the newest runs of a project, have used of each model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Count, Q, Sum

from runs.models import AgentRun, TurnUsage
from runs.models.run import CostSource

TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
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


def usage_by_model(run_id: UUID) -> list[dict[str, Any]]:
    """Return the number of calls, the tokens and the cost of each model, by name. One query.

    Calls without a lasting answer are included; `unpriced` is the number of calls without a known cost. `cost_usd` is
    None if the cost of no call is known.
    """
    sums: dict[str, Any] = {name: Sum(name) for name in (*TOKENS, "cost_usd")}
    rows: Any = TurnUsage.objects.filter(run=run_id).values("model").order_by("model")
    # What a program reports beyond its answers is no call that is known.
    calls = ~Q(outcome=TurnUsage.Outcome.PROGRAM)
    counts = {
        "calls": Count("pk", filter=calls),
        "unpriced": Count("pk", filter=calls & Q(cost_source=CostSource.UNKNOWN)),
    }
    return list(rows.annotate(**counts, **sums))


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
