"""Prompt caching is enabled where the provider supports it, unless an agent disables it; savings are counted."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from runs.actions import project_changes
from runs.models import AgentRun, TurnUsage
from runs.providers import base
from runs.providers.base import ProviderUnusable
from runs.worker.worker import Worker
from tests.support.factories import drive, make_agent, make_run
from tests.support.recorded_vendor import MODELS, Answer, Vendor
from tests.support.run_checks import check

pytestmark = pytest.mark.django_db(transaction=True)
MARK = {"type": "ephemeral", "ttl": "5m"}


def says(text: str, *, read: int = 0, written: int = 0, plain: int = 20, **also: Any) -> Answer:
    """Return an answer of Anthropic with these input tokens."""
    counts = {"input_tokens": plain, "cache_read_input_tokens": read, "cache_creation_input_tokens": written}
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": "claude-sonnet-4-6",
        "stop_reason": None,
        "stop_sequence": None,
        "usage": counts | {"output_tokens": 1} | also,
    }
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 100}},
        {"type": "message_stop"},
    ]
    return Answer("".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode())


def run_of(protocol: str = "anthropic", **settings: Any) -> AgentRun:
    agent = make_agent(
        provider="llm", model=MODELS[protocol], tools=["done"], instructions="Be brief.", settings=settings
    )
    return make_run(agent, "Go.")


def test_system_tools_and_the_last_turn_are_marked(vendor: Vendor, worker: Worker) -> None:
    vendor.answers = [says("Done.")]
    assert drive(run_of(), worker).status == "completed"

    [asked] = vendor.asked
    assert asked.body["tools"][-1]["cache_control"] == MARK
    assert asked.body["system"][-1]["cache_control"] == MARK
    # The provider puts this mark on the last block, and moves it as the conversation grows.
    assert asked.body["cache_control"] == MARK


def test_an_agent_can_disable_caching(vendor: Vendor, worker: Worker) -> None:
    vendor.answers = [says("Done.")]
    assert drive(run_of(prompt_cache=False), worker).status == "completed"

    [asked] = vendor.asked
    assert "cache_control" not in json.dumps(asked.body)
    with pytest.raises(ProviderUnusable, match=r"settings\.prompt_cache is 'no'"):
        base.get("llm").check(MODELS["anthropic"], {"prompt_cache": "no"})


def test_savings_are_counted(vendor: Vendor, worker: Worker) -> None:
    """Published price: 3 dollars per million tokens. A cache read costs a tenth, a cache write a quarter more."""
    vendor.answers = [says("Done.", read=1_000_000)]
    read = drive(run_of(), worker)
    vendor.answers = [says("Done.", written=1_000_000)]
    written = drive(run_of(), worker)

    saved = dict(TurnUsage.objects.values_list("run", "cache_saved_usd"))
    assert saved == {read.pk: Decimal("2.7"), written.pk: Decimal("-0.75")}
    assert (read.cache_read_tokens, read.input_tokens) == (1_000_000, 1_000_020)
    check(read)


def test_one_hour_writes_and_fast_mode_have_their_prices(vendor: Vendor, worker: Worker) -> None:
    """Sonnet 4.6 has no published price for fast mode, and costs 3.75 or 6 dollars per million tokens written."""
    split = {"ephemeral_5m_input_tokens": 600_000, "ephemeral_1h_input_tokens": 400_000}
    vendor.answers = [says("Done.", written=1_000_000, plain=0, cache_creation=split)]
    written = drive(run_of(), worker)
    vendor.answers = [says("Done.", plain=1000, speed="fast")]
    fast = drive(run_of(), worker)

    assert (written.cache_write_tokens, written.cache_write_1h_tokens) == (1_000_000, 400_000)
    assert (written.cost_usd, written.unpriced_calls) == (Decimal("2.25") + Decimal("2.4") + Decimal("0.0015"), 0)
    assert (fast.cost_usd, fast.unpriced_calls) == (None, 1)
    row = TurnUsage.objects.get(run=fast)
    assert (row.tier, row.cost_note) == ("fast", "no published price for fast of claude-sonnet-4-6")
    check(written)
    check(fast)


def test_a_price_of_the_project_has_the_same_buckets_and_tiers(vendor: Vendor, worker: Worker) -> None:
    split = {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 1_000_000}
    agent = make_agent(provider="llm", model=MODELS["anthropic"], tools=[])
    price = {"model": "claude-*", "input": "1", "output": "0", "cache_write": "2", "cache_write_1h": "3"}
    project_changes.set_price(agent.project, price, by="test")
    vendor.answers = [says("Done.", written=1_000_000, plain=0, cache_creation=split)]
    written = drive(make_run(agent, "Go."), worker)
    vendor.answers = [says("Done.", plain=1_000_000, speed="fast")]
    unpriced = drive(make_run(agent, "Go."), worker)
    fast_price = {"model": "claude-*", "tier": "fast", "input": "7", "output": "0"}
    project_changes.set_price(agent.project, fast_price, by="test")
    vendor.answers = [says("Done.", plain=1_000_000, speed="fast")]
    fast = drive(make_run(agent, "Go."), worker)

    assert [each.cost_usd for each in (written, unpriced, fast)] == [Decimal(3), None, Decimal(7)]
    row = TurnUsage.objects.get(run=unpriced)
    assert (row.cost_source, row.cost_note) == ("unknown", "the project's price for claude-* is not of tier fast")
    for each in (written, unpriced, fast):
        check(each)
