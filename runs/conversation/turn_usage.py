"""The usage of a model call as a row, with its cost by the published prices."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from uuid import UUID

from django.utils import timezone
from pydantic_ai.messages import ModelResponse
from pydantic_ai.usage import RequestUsage

from runs.models import TurnUsage


def usage_of(run_id: UUID, step: int, attempt: int, answer: ModelResponse, duration_ms: int | None) -> TurnUsage:
    """Return the usage of a model call as a row, with its cost by the published prices."""
    used, cost = answer.usage, _cost(answer)
    return TurnUsage(
        run_id=run_id, step_number=step, attempt=attempt, model=(answer.model_name or "")[:200],
        input_tokens=max(used.input_tokens, 0), output_tokens=max(used.output_tokens, 0),
        cache_read_tokens=max(used.cache_read_tokens, 0), cache_write_tokens=max(used.cache_write_tokens, 0),
        reasoning_tokens=max(used.output_reasoning_tokens, 0), cost_usd=cost,
        cache_saved_usd=_cache_saving(answer, cost), usage_complete=used.input_tokens > 0 or used.output_tokens > 0,
        duration_ms=duration_ms, created_at=timezone.now(),
    )  # fmt: skip


def _cost(answer: ModelResponse) -> Decimal | None:
    """Return US dollars by the published prices; None if the model has no price."""
    if not answer.usage.has_values() or not answer.model_name:
        return None
    try:
        return round(answer.cost().total_price, 8)
    except (LookupError, AssertionError, ValueError):
        return None


def _cache_saving(answer: ModelResponse, cost: Decimal | None) -> Decimal | None:
    """Return the cost without the cache, minus `cost`. Negative where the call wrote more to the cache than it read."""
    used = answer.usage
    if cost is None or not (used.cache_read_tokens or used.cache_write_tokens):
        return None
    plain = RequestUsage(input_tokens=used.input_tokens, output_tokens=used.output_tokens)
    uncached = _cost(replace(answer, usage=plain))
    return None if uncached is None else uncached - cost
