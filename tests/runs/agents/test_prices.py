"""Prices set by a project: matching of patterns, cost of a call, and refused prices."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from runs.agents.prices import Buckets, InvalidPrices, ModelPrice, price_of_call, prices_for, prices_of

PRICE: dict[str, Any] = {"model": "claude-*", "input": "3", "output": "15"}


def test_the_buckets_are_disjoint() -> None:
    tokens = Buckets.of(1000, 200, cache_read=600, cache_write=100, cache_write_1h=40, reasoning=50)
    assert tokens == Buckets(input=300, cache_read=600, cache_write=60, cache_write_1h=40, output=150, reasoning=50)
    assert Buckets.of(10, 5, cache_read=600, reasoning=9) == Buckets(0, 600, 0, 0, 0, 9)


def test_each_bucket_has_its_price() -> None:
    tokens = Buckets.of(1_000_000, 200_000, cache_read=600_000, cache_write=100_000, reasoning=50_000)
    [price] = prices_of({"prices": [PRICE | {"cache_read": "0.3", "cache_write": "3.75", "reasoning": "20"}]})
    assert price.cost(tokens) == Decimal("0.9") + Decimal("0.18") + Decimal("0.375") + Decimal("2.25") + Decimal(1)
    [price] = prices_of({"prices": [PRICE]})
    assert price.cost(tokens) == Decimal(3) + Decimal(3)


def test_one_hour_cache_writes_have_a_separate_price() -> None:
    tokens = Buckets.of(100_000, 0, cache_write=100_000, cache_write_1h=40_000)
    [dear, as_others] = prices_of(
        {"prices": [PRICE | {"cache_write": "3.75", "cache_write_1h": "6"}, PRICE | {"cache_write": "3.75"}]}
    )
    assert dear.cost(tokens) == Decimal("0.225") + Decimal("0.24")
    assert as_others.cost(tokens) == Decimal("0.375")


def test_prices_of_a_tier_and_of_long_requests() -> None:
    sizes: list[dict[str, Any]] = [{}, {"above": 200_000}, {"tier": "fast"}, {"tier": "fast", "above": 100}]
    prices = prices_of({"prices": [PRICE | each for each in sizes]})
    calls = [("", 5), ("", 200_000), ("", 200_001), ("fast", 100), ("fast", 101), ("batch", 5)]
    keys = [price and price.key[1:] for price in (price_of_call(prices, *each) for each in calls)]
    assert keys == [("", 0), ("", 0), ("", 200_000), ("fast", 0), ("fast", 100), None]


@pytest.mark.parametrize(
    ("patterns", "names", "chosen"),
    [
        (["*", "claude-*", "claude-sonnet-4-*"], ["claude-sonnet-4-6"], "claude-sonnet-4-*"),
        (["gpt-5", "gpt-5*"], ["gpt-5"], "gpt-5*"),
        (["anthropic:*", "claude-*"], ["anthropic:claude-x", "claude-x"], "anthropic:*"),
        (["gpt-*"], ["claude-x", ""], None),
        (["Claude-*"], ["claude-x"], None),
        ([], ["claude-x"], None),
    ],
)
def test_the_most_specific_pattern_wins(patterns: list[str], names: list[str], chosen: str | None) -> None:
    prices = [ModelPrice(model=pattern, input=Decimal(1), output=Decimal(1)) for pattern in patterns]
    found = prices_for(prices, *names)
    assert [price.model for price in found] == ([chosen] if chosen else [])


@pytest.mark.parametrize(
    "wrong",
    [
        {"input": "-1"},
        {"input": "NaN"},
        {"input": "1e9"},
        {"input": "0.000000001"},
        {"input": "free"},
        {"input": None},
        {"tier": "Fast!"},
        {"above": -1},
        {"above": "many"},
        {"model": ""},
        {"model": "gpt-[5]"},
        {"model": "x" * 201},
        {"currency": "EUR"},
    ],
)
def test_invalid_prices_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidPrices, match=f"^invalid price for model .*: {next(iter(wrong))}: "):
        prices_of({"prices": [PRICE | wrong]})


def test_too_many_prices_and_other_shapes_are_refused() -> None:
    with pytest.raises(InvalidPrices, match="at most 200"):
        prices_of({"prices": [PRICE | {"model": f"m{n}"} for n in range(201)]})
    with pytest.raises(InvalidPrices):
        prices_of({"prices": "none"})
    assert prices_of({}) == prices_of(None) == []
