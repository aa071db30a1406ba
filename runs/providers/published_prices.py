"""The published prices of models, from the installed version of genai-prices. Makes no network request.

The prices depend on the kind of token, the service tier, the length of the request, and the date. A call in a tier
without a published price has no price: the standard price would be wrong. Models are searched by the names that
their vendors, Bedrock, Vertex AI, OpenRouter or LiteLLM use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import ModelInfo, ModelPrice, Provider, TieredPrices
from genai_prices.types import Tier as Step
from pydantic_ai.usage import RequestUsage

from agentops.base import database_clock
from runs.providers.price_tiers import US_ONLY

#: The price of fast mode as a multiple of the standard price, for models whose price is missing in genai-prices 0.2.3.
#: https://platform.claude.com/docs/en/build-with-claude/fast-mode#pricing, as of 2026-11: $30 and $150 per million
#: tokens; the multipliers of the prompt cache and of the region of inference apply in addition.
_FAST = {"claude-opus-4-6": 6, "claude-opus-4-7": 6}
#: The price of inference only in the US, as a multiple of the standard price, which models before Opus 4.6 and Sonnet
#: 4.6 cost everywhere. https://support.claude.com/en/articles/15422948, as of 2026-11.
_US_ONLY = Decimal("1.1")
_BEFORE_US_ONLY = (
    *("claude-v1", "claude-2", "claude-3", "claude-opus-4-0", "claude-opus-4-1", "claude-opus-4-5"),
    *("claude-sonnet-4-0", "claude-sonnet-4-5", "claude-haiku-4-5"),
)


class NoPublishedPrice(LookupError):
    """A call has no published price. The message names the missing price, for users."""


@dataclass(frozen=True)
class PublishedPrice:
    """The price of a model in US dollars per million tokens.

    A cache price of None means that the price of input applies; for `cache_write_1h`, the price of `cache_write`.
    """

    #: The vendor and the model that have this price.
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
    """The cost of a call by the published prices of a model."""

    usd: Decimal
    vendor: str
    model: str


@lru_cache(maxsize=512)
def published_price(name: str) -> PublishedPrice | None:
    """Return the price of a model; None without one. `name` may have the form `vendor:model` that agents use."""
    vendor, _, model = name.partition(":")
    match = find_model(name)
    if match is None and model:
        match = find_model(model, vendor.removesuffix("-responses").removesuffix("-chat"))
    if match is None:
        return None
    provider, info = match
    prices: Any = info.get_prices(database_clock.now())
    buckets = ("input", "cache_read", "cache_write", "cache_write_1h", "output")
    amounts = {bucket: getattr(prices, f"{bucket}_mtok", None) for bucket in buckets}
    if amounts["input"] is None and amounts["output"] is None:
        return None
    is_tiered = any(isinstance(amount, TieredPrices) for amount in amounts.values())
    base_prices: Any = {bucket: getattr(amount, "base", amount) for bucket, amount in amounts.items()}
    return PublishedPrice(provider.id, info.id, **base_prices, is_tiered=is_tiered)


def published_cost(
    usage: RequestUsage, model: str, *, vendor: str = "", url: str = "", tier: str = "", at: datetime
) -> PublishedCost:
    """Return the cost of a call at the time `at`. `vendor`, `url`: see `find_model`.

    Raises `NoPublishedPrice`, and `ValueError` for counts that contradict each other.
    """
    match = find_model(model, vendor, url)
    if match is None:
        raise NoPublishedPrice(f"no published price for {model[:100]}")
    provider, info = match
    price = _price_in_tier(provider, info, tier, at)
    if usage.cache_write_1h_tokens and price.cache_write_mtok is not None and price.cache_write_1h_mtok is None:
        raise NoPublishedPrice(f"no published price for one-hour cache writes of {model[:100]}")
    return PublishedCost(price.calc_price(usage)["total_price"], provider.id, info.id)


def _price_in_tier(provider: Provider, info: ModelInfo, tier: str, at: datetime) -> Any:
    """Return the price of a model in a tier at a time, a `ModelPrice`. Raises `NoPublishedPrice`."""
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
    """Return the context for genai-prices that selects the prices of a tier; empty if the model has none then."""
    for variant in info.price_variants or ():
        is_active = variant.constraint is None or variant.constraint.active(at)
        if is_active and len(variant.when) == 1 and tier in variant.when.values():
            return variant.when
    return {}


def _multiplied(price: ModelPrice, multiple: Decimal) -> ModelPrice:
    """Return the price with all prices of tokens multiplied. Other prices, such as of searches, stay the same."""
    return ModelPrice(
        **{name: _times(amount, multiple) if name.endswith("_mtok") else amount for name, amount in vars(price).items()}
    )


def _times(amount: Decimal | TieredPrices | None, multiple: Decimal) -> Decimal | TieredPrices | None:
    if isinstance(amount, TieredPrices):
        return TieredPrices(amount.base * multiple, [Step(each.start, each.price * multiple) for each in amount.tiers])
    return None if amount is None else amount * multiple


#: The size of the context window, which Claude Code adds to a name.
_ADDED = re.compile(r"\[[^]]*\]$")
#: Names in Amazon Bedrock: a model or, with a region first, an inference profile; alone or at the end of an ARN.
_BEDROCK = re.compile(
    r"(?:^|/)(?:(?:us|us-gov|eu|apac|jp|au|ca|in|sa|global)\.)?"
    r"(?:ai21|amazon|anthropic|cohere|deepseek|meta|mistral|moonshot|openai|qwen|writer|zai)\.[a-z]"
)
#: Names in Google's Vertex AI: with a version after `@`, or below a publisher.
_VERTEX = re.compile(r"@(?:\d{8}|default|latest)$|publishers/[a-z0-9-]+/models/")
#: OpenRouter's names of models that only their vendors serve. Names of other models are also used by own servers.
_OPENROUTER = re.compile(
    r"^~?(?:anthropic/claude-|openai/(?:gpt-[345]|gpt-[6-9]|chatgpt|o\d)|google/gemini-|x-ai/grok-)"
)
#: The vendor prefixes of LiteLLM's names.
_LITELLM = re.compile(
    r"^(?:anthropic|azure|azure_ai|bedrock|cohere|deepseek|fireworks_ai|gemini|groq|mistral|openrouter|perplexity"
    r"|together_ai|vertex_ai|xai|openai(?!/gpt-oss))/"
)
#: Prefixes that pydantic-ai, LangChain and others put before a name.
_PREFIX = re.compile(
    r"^(anthropic|openai|azure|bedrock|google|google-gla|google-vertex|mistral|groq|deepseek):(?=[a-z])"
)
#: The vendors of prefixes that are not the vendor's ID in genai-prices.
_PREFIXES = {"bedrock": "aws", "google-gla": "google", "google-vertex": "google"}
#: Names of models that are served only by their vendors, or by clouds under different names.
_OWN = {
    "anthropic": re.compile(r"^claude-"),
    "openai": re.compile(r"^(?:gpt-[345]|gpt-[6-9]|chatgpt-|o\d)"),
    "google": re.compile(r"^(?:models/)?gemini-"),
    "x-ai": re.compile(r"^grok-"),
}


@lru_cache(maxsize=2048)
def find_model(name: str, vendor: str = "", url: str = "") -> tuple[Provider, ModelInfo] | None:
    """Return the vendor and the model whose price applies; None if unknown.

    `vendor` and `url` identify the server that answered. Without a URL, `vendor` may only name the library that a
    program calls all models with. A name that only another vendor uses then takes precedence if `vendor` does not have
    it.
    """
    plain = _ADDED.sub("", name.strip())
    for model, vendor_id, api_url in _references(plain, vendor, url):
        try:
            return get_snapshot().find_provider_model(model, None, vendor_id, api_url)
        except LookupError:
            continue
    return None


def _references(name: str, vendor: str, url: str) -> Iterator[tuple[str, str | None, str | None]]:
    """Yield what to look up, the most certain first: a model's name, and its vendor or the URL of the server."""
    if url and vendor != "openai-decisions":  # with the URL of OpenAI
        yield name, None, url
    if vendor:
        yield name, vendor, None
    if url:
        return
    yield from _by_form(name, name.lower())
    if not vendor:
        yield name, None, None


def _by_form(name: str, lowered: str) -> Iterator[tuple[str, str, None]]:
    """Yield the models and vendors that the form of a name implies."""
    if prefix := _PREFIX.match(lowered):
        yield name[prefix.end() :], _PREFIXES.get(prefix[1], prefix[1]), None
    if _BEDROCK.search(lowered):
        yield name, "aws", None
        yield name.rpartition("/")[2], "aws", None
    if _VERTEX.search(lowered):
        yield name.rpartition("/")[2], "google", None
    if _OPENROUTER.search(lowered):
        yield name, "openrouter", None
    if _LITELLM.search(lowered):
        yield name, "litellm", None
    for owner, names in _OWN.items():
        if names.search(lowered):
            yield name.removeprefix("models/"), owner, None
