"""The usage of a model call as a row, with its cost and where the cost comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from pydantic_ai.messages import ModelResponse
from pydantic_ai.usage import RequestUsage

from runs.agents.prices import COST_PLACES, MAX_COST, MAX_TOKENS, Buckets, ModelPrice, price_for
from runs.models import AgentRun, TurnUsage
from runs.models.run import CostSource
from timeline import database_clock

#: Sources of a cost that its event names: the others go without saying.
SOURCES_IN_EVENTS = frozenset({CostSource.REPORTED, CostSource.PROJECT})


@dataclass(frozen=True)
class _Cost:
    """A cost in US dollars; None if unknown."""

    usd: Decimal | None
    source: CostSource
    #: The cost without the prompt cache, minus `usd`.
    cache_saved_usd: Decimal | None = None


def usage_of(
    run_id: UUID,
    step: int,
    attempt: int,
    answer: ModelResponse,
    duration_ms: int | None,
    *,
    prices: Sequence[ModelPrice] = (),
    model: str = "",
) -> TurnUsage:
    """Return the usage of a model call as a row.

    Its cost is by the prices of the project, or as the provider reported it, or by the published prices. `model` is
    the name of the model in the agent's definition.
    """
    used = plausible(answer.usage)
    cost = _cost_of(replace(answer, usage=used), price_for(prices, model, answer.model_name or ""))
    return TurnUsage(
        run_id=run_id, step_number=step, attempt=attempt, model=(answer.model_name or "")[:200],
        input_tokens=used.input_tokens, output_tokens=used.output_tokens,
        cache_read_tokens=used.cache_read_tokens, cache_write_tokens=used.cache_write_tokens,
        reasoning_tokens=used.output_reasoning_tokens, cost_usd=cost.usd, cost_source=cost.source.value,
        cache_saved_usd=cost.cache_saved_usd, usage_complete=used.input_tokens > 0 or used.output_tokens > 0,
        duration_ms=duration_ms, created_at=database_clock.now(),
    )  # fmt: skip


def plausible(used: RequestUsage) -> RequestUsage:
    """Return the usage with 0 in place of each count that no model call has, such as 2**64: no column takes it."""
    counts = {field.name: getattr(used, field.name) for field in fields(used)}
    wrong: dict[str, Any] = {
        name: 0 for name, value in counts.items() if isinstance(value, int) and not 0 <= value <= MAX_TOKENS
    }
    return replace(used, **wrong) if wrong else used


def buckets_of(row: AgentRun | TurnUsage) -> Buckets:
    """Return the tokens of a run or of a model call in disjoint buckets."""
    return Buckets.of(
        row.input_tokens,
        row.output_tokens,
        cache_read=row.cache_read_tokens,
        cache_write=row.cache_write_tokens,
        reasoning=row.reasoning_tokens,
    )


def _cost_of(answer: ModelResponse, price: ModelPrice | None) -> _Cost:
    if price is not None and answer.usage.has_values():
        cost, uncached = cost_by(price, _buckets(answer.usage)), cost_by(price, _buckets(_without_cache(answer.usage)))
        if cost is None:
            return _Cost(None, CostSource.UNKNOWN)
        saved = uncached - cost if uncached is not None and _used_cache(answer.usage) else None
        return _Cost(cost, CostSource.PROJECT, saved)
    reported = _reported_cost(answer)
    if reported is not None:
        return _Cost(reported, CostSource.REPORTED)
    cost_usd = _published_cost(answer)
    if cost_usd is None:
        return _Cost(None, CostSource.UNKNOWN)
    return _Cost(cost_usd, CostSource.COMPUTED, _cache_saving(answer, cost_usd))


def cost_by(price: ModelPrice, tokens: Buckets) -> Decimal | None:
    """Return US dollars by a price of the project; None for more than a call can cost, because its tokens are wrong."""
    cost = price.cost(tokens)
    return cost if cost < MAX_COST else None


def _buckets(used: RequestUsage) -> Buckets:
    return Buckets.of(
        used.input_tokens,
        used.output_tokens,
        cache_read=used.cache_read_tokens,
        cache_write=used.cache_write_tokens,
        reasoning=used.output_reasoning_tokens,
    )


def _reported_cost(answer: ModelResponse) -> Decimal | None:
    """Return the cost that OpenRouter reports with an answer."""
    reported = (answer.provider_details or {}).get("cost") if answer.provider_name == "openrouter" else None
    try:
        cost = round(Decimal(str(reported)), COST_PLACES)
        return cost if 0 <= cost < MAX_COST else None
    except InvalidOperation:  # not a number, in words or by IEEE 754
        return None


def _published_cost(answer: ModelResponse) -> Decimal | None:
    """Return US dollars by the published prices; None if the model has no price, or costs more than any call."""
    if not answer.usage.has_values() or not answer.model_name:
        return None
    try:
        cost = round(answer.cost().total_price, COST_PLACES)
        return cost if cost < MAX_COST else None
    except (LookupError, AssertionError, ValueError, InvalidOperation):
        return None


def _cache_saving(answer: ModelResponse, cost: Decimal) -> Decimal | None:
    """Return the cost without the cache, minus `cost`. Negative where the call wrote more to the cache than it read."""
    if not _used_cache(answer.usage):
        return None
    uncached = _published_cost(replace(answer, usage=_without_cache(answer.usage)))
    return None if uncached is None else uncached - cost


def _used_cache(used: RequestUsage) -> bool:
    return bool(used.cache_read_tokens or used.cache_write_tokens)


def _without_cache(used: RequestUsage) -> RequestUsage:
    return RequestUsage(input_tokens=used.input_tokens, output_tokens=used.output_tokens)
