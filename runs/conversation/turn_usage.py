"""The usage of a model call as a row, with its cost and the source of the cost."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from pydantic_ai.messages import ModelResponse
from pydantic_ai.usage import RequestUsage

from agentops.base import database_clock
from runs.agents.prices import COST_PLACES, MAX_COST, MAX_TOKENS, Buckets, ModelPrice, price_of_call, prices_for
from runs.conversation import writes
from runs.models import AgentRun, TurnUsage
from runs.models.checkpoint import MAX_COST_NOTE
from runs.models.run import CostSource
from runs.providers.price_tiers import tier_of
from runs.providers.published_prices import NoPublishedPrice, PublishedCost, published_cost

#: Cost sources that an event names. By default, a cost is computed from published prices.
SOURCES_IN_EVENTS = frozenset({CostSource.REPORTED, CostSource.PROJECT})
_TOO_MUCH = "more than a model call can cost"


@dataclass(frozen=True)
class _Cost:
    """A cost in US dollars; None if unknown."""

    usd: Decimal | None
    source: CostSource
    #: The cost without the prompt cache, minus `usd`.
    cache_saved_usd: Decimal | None = None
    #: Why the cost is unknown; or the vendor, model and tier of the price, if these are not those of a plain call.
    note: str = ""


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
    """Return the usage of a model call as an unsaved row.

    The cost comes from the project's prices, or else from the provider's report, or else from the published prices.
    `model` is the name of the model in the agent's definition.
    """
    used = plausible(answer.usage)
    tier = tier_of(answer.provider_details or {})
    cost = _cost_of(replace(answer, usage=used), tier, prices_for(prices, model, answer.model_name or ""))
    return TurnUsage(
        run_id=run_id,
        step_number=step,
        attempt=attempt,
        model=(answer.model_name or "")[:200],
        tier=tier,
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cache_read_tokens=used.cache_read_tokens,
        cache_write_tokens=used.cache_write_tokens,
        cache_write_1h_tokens=used.cache_write_1h_tokens,
        reasoning_tokens=used.output_reasoning_tokens,
        cost_usd=cost.usd,
        cost_source=cost.source.value,
        cost_note=cost.note[:MAX_COST_NOTE],
        cache_saved_usd=cost.cache_saved_usd,
        usage_complete=used.input_tokens > 0 or used.output_tokens > 0,
        duration_ms=duration_ms,
        created_at=database_clock.now(),
    )


def event_fields(usage: TurnUsage) -> dict[str, Any]:
    """Return the usage as fields of an event."""
    return {
        "attempt": usage.attempt or None,
        "model": usage.model or None,
        "tier": usage.tier or None,
        **{name: getattr(usage, name) or None for name in writes.TOKENS},
        "cost_usd": str(usage.cost_usd) if usage.cost_usd is not None else None,
        "cost_source": usage.cost_source if usage.cost_source in SOURCES_IN_EVENTS else None,
        "duration_ms": usage.duration_ms,
    }


def plausible(used: RequestUsage) -> RequestUsage:
    """Return the usage with impossible counts, such as 2**64, set to 0, because no column can store them.

    The cache tokens written for one hour are reduced to the total of written cache tokens.
    """
    counts = {field.name: getattr(used, field.name) for field in fields(used)}
    wrong: dict[str, Any] = {
        name: 0 for name, value in counts.items() if isinstance(value, int) and not 0 <= value <= MAX_TOKENS
    }
    written, written_1h = (wrong.get(name, counts[name]) for name in ("cache_write_tokens", "cache_write_1h_tokens"))
    if written_1h > written:
        wrong["cache_write_1h_tokens"] = written
    if not wrong:
        return used
    checked = copy(used)  # keeps attributes that are not fields, such as searches
    for name, value in wrong.items():
        setattr(checked, name, value)
    return checked


def buckets_of(used: AgentRun | TurnUsage | RequestUsage) -> Buckets:
    """Return the tokens of a run or of a model call in disjoint buckets."""
    return Buckets.of(
        used.input_tokens,
        used.output_tokens,
        cache_read=used.cache_read_tokens,
        cache_write=used.cache_write_tokens,
        cache_write_1h=used.cache_write_1h_tokens,
        reasoning=used.output_reasoning_tokens if isinstance(used, RequestUsage) else used.reasoning_tokens,
    )


def _cost_of(answer: ModelResponse, tier: str, prices: Sequence[ModelPrice]) -> _Cost:
    """Return the cost of an answer. `prices` are the project's prices for the model."""
    own = prices if answer.usage.has_values() else ()
    price = price_of_call(own, tier, answer.usage.input_tokens)
    if price is not None:
        return _project_cost(answer.usage, price)
    reported = _reported_cost(answer)
    if reported is not None:
        return _Cost(reported, CostSource.REPORTED)
    if own:
        of_tier = f"tier {tier}" if tier else "the standard tier"
        return _Cost(None, CostSource.UNKNOWN, note=f"the project's price for {own[0].model} is not of {of_tier}")
    try:
        published = _published_cost(answer, tier)
    except _Unpriced as reason:
        return _Cost(None, CostSource.UNKNOWN, note=str(reason))
    is_own = published.vendor == answer.provider_name or not answer.provider_name
    note = "" if is_own and not tier else f"{published.vendor}: {published.model}{f', {tier}' if tier else ''}"
    return _Cost(published.usd, CostSource.COMPUTED, _cache_saving(answer, tier, published.usd), note)


def _project_cost(used: RequestUsage, price: ModelPrice) -> _Cost:
    """Return the cost by a price of the project, and what the prompt cache saved."""
    cost, uncached = cost_by(price, buckets_of(used)), cost_by(price, buckets_of(_without_cache(used)))
    if cost is None:
        return _Cost(None, CostSource.UNKNOWN, note=_TOO_MUCH)
    saved = uncached - cost if uncached is not None and _used_cache(used) else None
    return _Cost(cost, CostSource.PROJECT, saved)


def cost_by(price: ModelPrice, tokens: Buckets) -> Decimal | None:
    """Return US dollars by a price of the project; None above the maximum of a call, because its tokens are wrong."""
    cost = price.cost(tokens)
    return cost if cost < MAX_COST else None


def _reported_cost(answer: ModelResponse) -> Decimal | None:
    """Return the cost that OpenRouter reports with an answer; None if it is missing or invalid."""
    return amount_of((answer.provider_details or {}).get("cost")) if answer.provider_name == "openrouter" else None


def amount_of(value: object) -> Decimal | None:
    """Return a reported cost in US dollars; None if it is not a valid amount."""
    try:
        cost = round(Decimal(str(value)), COST_PLACES)
        return cost if 0 <= cost < MAX_COST else None
    except InvalidOperation:  # not a number, or NaN or infinity
        return None


class _Unpriced(Exception):
    """The published prices do not give a cost. The message is the reason, for people."""


def _published_cost(answer: ModelResponse, tier: str) -> PublishedCost:
    """Return the cost by the published prices. Raises `_Unpriced` if there is none, or above the maximum of a call."""
    if not answer.usage.has_values():
        raise _Unpriced("no tokens reported")
    if not answer.model_name:
        raise _Unpriced("no model reported")
    try:
        cost = published_cost(
            answer.usage,
            answer.model_name,
            vendor=answer.provider_name or "",
            url=answer.provider_url or "",
            tier=tier,
            at=answer.timestamp,
        )
        usd = round(cost.usd, COST_PLACES)
    except NoPublishedPrice as reason:
        raise _Unpriced(str(reason)) from None
    except (LookupError, AssertionError, ValueError, InvalidOperation):
        raise _Unpriced("the reported tokens contradict each other") from None
    if usd >= MAX_COST:
        raise _Unpriced(_TOO_MUCH)
    return replace(cost, usd=usd)


def _cache_saving(answer: ModelResponse, tier: str, cost: Decimal) -> Decimal | None:
    """Return the cost without the prompt cache, minus `cost`; None if the call used no cache or has no price.

    Negative if writing to the cache cost more than reading from it saved.
    """
    if not _used_cache(answer.usage):
        return None
    try:
        return _published_cost(replace(answer, usage=_without_cache(answer.usage)), tier).usd - cost
    except _Unpriced:
        return None


def _used_cache(used: RequestUsage) -> bool:
    return bool(used.cache_read_tokens or used.cache_write_tokens)


def _without_cache(used: RequestUsage) -> RequestUsage:
    """Return the usage of the same call without the prompt cache."""
    uncached = copy(used)  # keeps attributes that are not fields, such as searches
    for name in ("cache_read_tokens", "cache_write_tokens", "cache_write_1h_tokens", "cache_audio_read_tokens"):
        setattr(uncached, name, 0)
    return uncached
