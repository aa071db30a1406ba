"""Prices that a project sets for models, and that replace published prices.

A price says to which models it applies (by a name pattern), and what each kind of token costs. Each token of a call is
counted in one kind only (`Buckets`), so that it is paid for once.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from agentops.base.refusals import Invalid
from runs.providers.price_tiers import MAX_TIER

log = logging.getLogger(__name__)
#: Maximum prices of a project.
MAX_PRICES = 200
#: A price is the cost of this number of tokens in US dollars.
TOKENS_PER_PRICE = 1_000_000
#: Decimal places of a cost in its column.
COST_PLACES = 8
#: Maximum cost of a model call in US dollars: above any real one, and low enough that sums fit their columns.
MAX_COST = Decimal(10) ** 6
#: Maximum tokens of one kind in a model call, for the same reasons.
MAX_TOKENS = 10**12


class InvalidPrices(Invalid, ValueError):
    """The prices of a project are invalid. The message names the price and the error."""

    code = "invalid_price"

    def __init__(self, text: str, field: str = "") -> None:
        super().__init__(text)
        #: The invalid member of a price; empty for the list as a whole.
        self.field = field


@dataclass(frozen=True)
class Buckets:
    """The tokens of a model call by their kind. Each token is counted once."""

    #: Sent, and neither read from the prompt cache nor written to it.
    input: int
    cache_read: int
    #: Written to the prompt cache for five minutes, or for a time that the provider does not report.
    cache_write: int
    #: Written to the prompt cache for one hour, which costs more.
    cache_write_1h: int
    #: Received, without reasoning.
    output: int
    reasoning: int

    @classmethod
    def of(
        cls,
        input_tokens: int,
        output_tokens: int,
        *,
        cache_read: int = 0,
        cache_write: int = 0,
        cache_write_1h: int = 0,
        reasoning: int = 0,
    ) -> Buckets:
        """Split the totals that a provider reports.

        `input_tokens` includes cached tokens, `output_tokens` includes reasoning, and `cache_write` includes
        `cache_write_1h`. No result is negative, even if a provider reports more cached tokens than input tokens.
        """
        return cls(
            input=max(input_tokens - cache_read - cache_write, 0),
            cache_read=cache_read,
            cache_write=max(cache_write - cache_write_1h, 0),
            cache_write_1h=cache_write_1h,
            output=max(output_tokens - reasoning, 0),
            reasoning=reasoning,
        )


def _pattern(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._:/@+*-]+", text):
        raise ValueError("a pattern consists of letters, digits and . _ : / @ + - *")
    return text


def _tier(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9_.+-]*", text):
        raise ValueError("a tier is a word such as fast, batch, flex or priority; leave it out for the standard one")
    return text


Pattern = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_pattern)]
Tier = Annotated[str, Field(max_length=MAX_TIER), AfterValidator(_tier)]
Price = Annotated[Decimal, Field(ge=0, lt=1_000_000, decimal_places=COST_PLACES, allow_inf_nan=False)]


class ModelPrice(BaseModel):
    """The price of the models that match a pattern, in US dollars per million tokens.

    A pattern can have several prices: for each tier, and for calls that send more tokens than `above`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: The name of a model as in definitions of agents (`vendor:model`) or as the provider reports it, with `*` for any
    #: characters.
    model: Pattern
    #: The tier of the calls, as in runs.providers.price_tiers; empty for the standard tier.
    tier: Tier = ""
    #: The price applies to calls that send more input tokens than this, including cached ones.
    above: Annotated[int, Field(ge=0, le=MAX_TOKENS)] = 0
    input: Price
    output: Price
    #: None: the price of `input`.
    cache_read: Price | None = None
    #: None: the price of `input`.
    cache_write: Price | None = None
    #: None: the price of `cache_write`.
    cache_write_1h: Price | None = None
    #: None: the price of `output`.
    reasoning: Price | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        """The key of the price, unique in a project: model, tier and `above`."""
        return self.model, self.tier, self.above

    def cost(self, tokens: Buckets) -> Decimal:
        """Return the cost of a model call in US dollars."""
        cache_read = self.input if self.cache_read is None else self.cache_read
        cache_write = self.input if self.cache_write is None else self.cache_write
        cache_write_1h = cache_write if self.cache_write_1h is None else self.cache_write_1h
        reasoning = self.output if self.reasoning is None else self.reasoning
        dollars = (
            tokens.input * self.input
            + tokens.cache_read * cache_read
            + tokens.cache_write * cache_write
            + tokens.cache_write_1h * cache_write_1h
            + tokens.output * self.output
            + tokens.reasoning * reasoning
        )
        return round(dollars / TOKENS_PER_PRICE, COST_PLACES)


_prices = TypeAdapter(list[ModelPrice])


def prices_of(settings: Any) -> list[ModelPrice]:
    """Return the prices in the settings of a project. Raises `InvalidPrices`."""
    stored = settings.get("prices") if isinstance(settings, Mapping) else None
    try:
        prices = _prices.validate_python(stored or [])
    except ValidationError as error:
        raise _refusal(stored, error) from None
    if len(prices) > MAX_PRICES:
        raise InvalidPrices(f"a project can have at most {MAX_PRICES} prices")
    return prices


def _refusal(stored: Any, error: ValidationError) -> InvalidPrices:
    """Convert an error of pydantic to one that names the model, the field of the price and the fault."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    message = first["msg"].removeprefix("Value error, ")
    match first["loc"]:
        case (int(index), *path) if isinstance(stored[index], Mapping):
            model = str(stored[index].get("model", ""))[:200]
            text = f"invalid price for model {model!r}: {'.'.join(map(str, path))}: {message}"
            return InvalidPrices(text, str(path[0]) if path else "")
    return InvalidPrices(f"invalid prices: {message}")


def readable_prices(settings: Any) -> list[ModelPrice]:
    """Return the prices in the settings of a project; if they are invalid, log a warning and return an empty list.

    Invalid prices must not stop a run: its calls then have the published prices.
    """
    try:
        return prices_of(settings)
    except InvalidPrices as error:
        log.warning("the prices of a project have no effect: %s", error)
        return []


def prices_for(prices: Sequence[ModelPrice], *names: str) -> list[ModelPrice]:
    """Return the prices of the most specific pattern that matches one of a model's names; empty if none matches.

    The most specific pattern is the one with the most characters other than `*`.
    """
    patterns = {price.model for price in prices if any(fnmatchcase(name, price.model) for name in names if name)}
    most_specific = max(patterns, key=lambda pattern: (len(pattern.replace("*", "")), pattern), default=None)
    return [price for price in prices if price.model == most_specific]


def price_of_call(prices: Sequence[ModelPrice], tier: str, input_tokens: int) -> ModelPrice | None:
    """Return the price of a call, from `prices` of its model, for its tier and size; None if the tier has no price."""
    applicable = [price for price in prices if price.tier == tier and (not price.above or price.above < input_tokens)]
    return max(applicable, key=lambda price: price.above, default=None)
