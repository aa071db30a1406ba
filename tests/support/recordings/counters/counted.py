"""The counts of a recorded run, and the cost of its tokens at published prices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from genai_prices import Usage, calc_price

PLACES = Decimal("0.00000001")


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Tokens in the convention of the API: `input` includes cached ones, and `written` includes `written_1h`."""

    input: int = 0
    cached: int = 0
    written: int = 0
    written_1h: int = 0
    output: int = 0
    reasoning: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(**{name: value + vars(other)[name] for name, value in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class Counted:
    """A run: its messages by role, tool calls and their results, model calls, tokens, and cost in US dollars."""

    system: int = 0
    user: int = 0
    assistant: int = 0
    results: int = 0
    calls: int = 0
    errors: int = 0
    #: Calls without a result.
    unanswered: int = 0
    model_calls: int = 0
    tokens: Tokens = Tokens()
    #: None if no cost is reported and no price is published.
    cost: Decimal | None = None
    unpriced: int = 0


def total(tokens: Iterable[Tokens]) -> Tokens:
    return sum(tokens, Tokens())


def dollars(amount: float | None) -> Decimal | None:
    """Return a reported cost as the API shows it."""
    return None if amount is None else round(Decimal(str(amount)), 8)


def published(tokens: Tokens, model: str, vendor: str) -> Decimal | None:
    """Return the cost of a call at the published prices, or None if the model has no price.

    Anthropic's one-hour cache writes cost twice the input, which the price list lacks.
    """
    if not any(vars(tokens).values()):
        return None
    count = Usage(
        input_tokens=tokens.input - tokens.written_1h,
        cache_read_tokens=tokens.cached,
        cache_write_tokens=tokens.written - tokens.written_1h,
        output_tokens=tokens.output,
    )
    try:
        price = calc_price(count, model, provider_id=vendor).total_price
        hour = 2 * calc_price(Usage(input_tokens=tokens.written_1h), model, provider_id=vendor).total_price
    except LookupError:
        return None
    return round(price + hour, 8)


def priced(calls: Iterable[tuple[Tokens, str]], vendor: str) -> tuple[Decimal | None, int]:
    """Return the total cost of model calls, and the number of calls without a price."""
    costs = [published(tokens, model, vendor) for tokens, model in calls]
    known = [cost for cost in costs if cost is not None]
    return (sum(known, Decimal()) if known else None), len(costs) - len(known)
