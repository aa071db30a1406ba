"""The published prices of models, from the installed version of genai-prices. Makes no network request.

They cover buckets, service tiers, steps of long requests and the start dates of prices. A tier has a price only if
genai-prices has it: the standard price would be wrong for a call in another tier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

from genai_prices.types import ModelInfo, ModelPrice, Provider, TieredPrices
from genai_prices.types import Tier as Step
from pydantic_ai.usage import RequestUsage

from agentops.base import database_clock
from runs.providers.model_names import find_model
from runs.providers.price_tiers import US_ONLY

#: The price of fast mode in multiples of the standard price, for models whose price genai-prices 0.2.3 lacks.
#: https://platform.claude.com/docs/en/build-with-claude/fast-mode#pricing, as of 2026-11: $30 and $150 per million
#: tokens; the multipliers of the prompt cache and of the region of inference apply in addition.
_FAST = {"claude-opus-4-6": 6, "claude-opus-4-7": 6}
#: The price of inference only in the US, as a multiple of the other price. Models before Opus 4.6 and Sonnet 4.6 cost
#: the same as elsewhere. https://support.claude.com/en/articles/15422948, as of 2026-11.
_US_ONLY = Decimal("1.1")
_BEFORE_US_ONLY = (
    *("claude-v1", "claude-2", "claude-3", "claude-opus-4-0", "claude-opus-4-1", "claude-opus-4-5"),
    *("claude-sonnet-4-0", "claude-sonnet-4-5", "claude-haiku-4-5"),
)


class NoPublishedPrice(LookupError):
    """A call has no published price. The message names the missing price, for users."""


@dataclass(frozen=True)
class PublishedPrice:
    """US dollars per million tokens. None: the price of input or output; for `cache_write_1h`, the price of
    `cache_write`.
    """

    #: The vendor and the model to which the price applies.
    vendor: str
    model: str
    input: Decimal | None
    cache_read: Decimal | None
    cache_write: Decimal | None
    cache_write_1h: Decimal | None
    output: Decimal | None
    #: Whether long requests cost more.
    is_tiered: bool


@dataclass(frozen=True)
class PublishedCost:
    """US dollars by the published prices of a model."""

    usd: Decimal
    vendor: str
    model: str


@lru_cache(maxsize=512)
def published_price(name: str) -> PublishedPrice | None:
    """Return the price of a model by its name, also in the form `vendor:model` that agents use; None without one."""
    found = find_model(name) or _of_agent(name)
    if found is None:
        return None
    provider, info = found
    prices: Any = info.get_prices(database_clock.now())
    buckets = ("input", "cache_read", "cache_write", "cache_write_1h", "output")
    amounts = {bucket: getattr(prices, f"{bucket}_mtok", None) for bucket in buckets}
    if amounts["input"] is None and amounts["output"] is None:
        return None
    is_tiered = any(isinstance(amount, TieredPrices) for amount in amounts.values())
    first: Any = {bucket: getattr(amount, "base", amount) for bucket, amount in amounts.items()}
    return PublishedPrice(provider.id, info.id, **first, is_tiered=is_tiered)


def _of_agent(name: str) -> tuple[Provider, ModelInfo] | None:
    vendor, _, model = name.partition(":")
    return find_model(model, vendor.removesuffix("-responses").removesuffix("-chat")) if model else None


def published_cost(
    usage: RequestUsage, model: str, *, vendor: str = "", url: str = "", tier: str = "", at: datetime
) -> PublishedCost:
    """Return the cost of a call. Raises `NoPublishedPrice`, and `ValueError` for counts that contradict each other."""
    found = find_model(model, vendor, url)
    if found is None:
        raise NoPublishedPrice(f"no published price for {model[:100]}")
    provider, info = found
    price = _price_in_tier(provider, info, tier, at)
    if usage.cache_write_1h_tokens and price.cache_write_mtok is not None and price.cache_write_1h_mtok is None:
        raise NoPublishedPrice(f"no published price for one-hour cache writes of {model[:100]}")
    return PublishedCost(price.calc_price(usage)["total_price"], provider.id, info.id)


def _price_in_tier(provider: Provider, info: ModelInfo, tier: str, at: datetime) -> Any:
    words = set(tier.split("+")) - {""}
    multiple = Decimal(1)
    if US_ONLY in words and provider.id == "anthropic":
        words.remove(US_ONLY)
        multiple = Decimal(1) if info.id.startswith(_BEFORE_US_ONLY) else _US_ONLY
    price = info.get_prices(at)
    if words:
        [word, *others] = sorted(words)
        context = _context(info, word, at) if provider.models and any(info is each for each in provider.models) else {}
        if others or not (context or (word == "fast" and provider.id == "anthropic" and info.id in _FAST)):
            raise NoPublishedPrice(f"no published price for {tier} of {info.id[:100]}")
        if context:
            price = info.get_prices(at, context)
        else:
            multiple *= _FAST[info.id]
    return price if multiple == 1 else _multiplied(price, multiple)


def _context(info: ModelInfo, tier: str, at: datetime) -> Mapping[str, str]:
    """Return the arguments that select the prices of a tier; empty if the model has none at that time."""
    for variant in info.price_variants or ():
        is_active = variant.constraint is None or variant.constraint.active(at)
        if is_active and len(variant.when) == 1 and tier in variant.when.values():
            return variant.when
    return {}


def _multiplied(price: ModelPrice, multiple: Decimal) -> ModelPrice:
    """Return the price with multiplied token prices. Prices of searches and so on are not changed."""
    return ModelPrice(
        **{name: _times(amount, multiple) if name.endswith("_mtok") else amount for name, amount in vars(price).items()}
    )


def _times(amount: Decimal | TieredPrices | None, multiple: Decimal) -> Decimal | TieredPrices | None:
    if isinstance(amount, TieredPrices):
        return TieredPrices(amount.base * multiple, [Step(each.start, each.price * multiple) for each in amount.tiers])
    return None if amount is None else amount * multiple
