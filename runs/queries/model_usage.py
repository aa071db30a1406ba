"""What a run has used of each model."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import Count, Sum

from runs.models import TurnUsage

TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")


def usage_by_model(run_id: UUID) -> list[dict[str, Any]]:
    """Return the number of calls, the tokens and the cost of each model, by name. One query.

    Calls without a lasting answer are included. `cost_usd` is None if the cost of no call is known.
    """
    sums: dict[str, Any] = {name: Sum(name) for name in (*TOKENS, "cost_usd")}
    rows: Any = TurnUsage.objects.filter(run=run_id).values("model").order_by("model")
    return list(rows.annotate(calls=Count("pk"), **sums))
