"""The usage of each step of a run: tokens and cost of its model calls, including calls without an answer."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db.models import Count, Q, Sum

from runs.conversation.writes import TOKENS
from runs.models import TurnUsage


@dataclass(frozen=True)
class StepCost:
    """The model calls of a step. The input includes tokens read from the cache and written to it."""

    step: int
    calls: int
    #: Calls with unknown cost.
    unpriced: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cache_write_1h_tokens: int
    reasoning_tokens: int
    cost_usd: Decimal | None
    duration_ms: int | None


def step_costs(run_id: UUID, after: int, limit: int) -> list[StepCost]:
    """Return the usage of the next steps after step `after`, in order. One query."""
    rows: Any = TurnUsage.objects.filter(run=run_id, step_number__gt=after).values("step_number")
    summed = rows.annotate(
        n=Count("pk"),
        without=Count("pk", filter=Q(cost_usd=None)),
        **{f"sum_{name}": Sum(name) for name in (*TOKENS, "cost_usd", "duration_ms")},
    ).order_by("step_number")
    return [_step_cost(row) for row in summed[:limit]]


def _step_cost(row: dict[str, Any]) -> StepCost:
    tokens = {name: row[f"sum_{name}"] or 0 for name in TOKENS}
    return StepCost(
        step=row["step_number"],
        calls=row["n"],
        unpriced=row["without"],
        cost_usd=row["sum_cost_usd"],
        duration_ms=row["sum_duration_ms"],
        **tokens,
    )
