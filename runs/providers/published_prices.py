"""The published prices of models, as genai-prices states them. Only the installed version is asked, not the network."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

from genai_prices.data_snapshot import get_snapshot

from timeline import database_clock


@dataclass(frozen=True)
class PublishedPrice:
    """US dollars per million tokens; None: the price of input or output."""

    #: The vendor and the model that the price is of.
    vendor: str
    model: str
    input: Decimal | None
    cache_read: Decimal | None
    cache_write: Decimal | None
    output: Decimal | None
    #: Whether long requests cost more.
    is_tiered: bool


@lru_cache(maxsize=512)
def published_price(name: str) -> PublishedPrice | None:
    """Return the price of a model by its name, also as agents state it (`vendor:model`); None if there is none."""
    vendor, _, model = name.rpartition(":")
    vendor_id = vendor.removesuffix("-responses").removesuffix("-chat") or None
    try:
        provider, info = get_snapshot().find_provider_model(model, None, vendor_id, None)
    except LookupError:
        return None
    prices: Any = info.get_prices(database_clock.now())
    amounts = [getattr(prices, f"{bucket}_mtok", None) for bucket in ("input", "cache_read", "cache_write", "output")]
    if amounts[0] is None and amounts[3] is None:
        return None
    sent, read, written, received = (getattr(amount, "base", amount) for amount in amounts)
    is_tiered = any(hasattr(amount, "base") for amount in amounts)
    return PublishedPrice(provider.id, info.id, sent, read, written, received, is_tiered)
