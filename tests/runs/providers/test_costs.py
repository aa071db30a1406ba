"""The cost of a model call: from the project's prices, the provider, or published prices; and its source."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.usage import RequestUsage

from runs.actions import project_changes
from runs.agents.prices import ModelPrice
from runs.conversation.turn_usage import usage_of
from runs.models import AgentRun, TurnUsage
from runs.worker.worker import Worker
from tests.support.factories import drive, make_agent, make_person, make_run
from tests.support.recorded_vendor import Answer, Vendor
from tests.support.run_checks import check, events

MODEL = "openai-chat:gpt-5"
USED = {
    "prompt_tokens": 1000,
    "completion_tokens": 300,
    "prompt_tokens_details": {"cached_tokens": 600},
    "completion_tokens_details": {"reasoning_tokens": 100},
}


def says(text: str, **used: Any) -> Answer:
    frame = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5-2025-08-07"}
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": USED | {"total_tokens": 1300} | used},
    ]
    return Answer("".join(f"data: {json.dumps(frame | chunk)}\n\n" for chunk in chunks).encode() + b"data: [DONE]\n\n")


def answer(**fields: Any) -> ModelResponse:
    used = RequestUsage(input_tokens=1000, output_tokens=300, cache_read_tokens=600, output_reasoning_tokens=100)
    return ModelResponse([TextPart("x")], usage=used, timestamp=datetime(2026, 1, 1, tzinfo=UTC), **fields)


def priced(response: ModelResponse, *prices: ModelPrice, model: str = "") -> tuple[str, Decimal | None, Decimal | None]:
    row = usage_of(uuid4(), 1, 0, response, None, prices=prices, model=model)
    return row.cost_source, row.cost_usd, row.cache_saved_usd


def test_the_sources_of_a_cost_in_their_order() -> None:
    own = ModelPrice(model="*gpt-5*", input=Decimal(2), output=Decimal(4), cache_read=Decimal(1), reasoning=Decimal(5))
    routed = answer(model_name="openai/gpt-5", provider_name="openrouter", provider_details={"cost": 0.0125})
    vendors = answer(model_name="gpt-5", provider_name="openai", provider_details={"cost": 7})

    assert priced(routed, own) == ("project", Decimal("0.0027"), Decimal("0.0006"))
    assert priced(routed) == ("reported", Decimal("0.0125"), None)
    source, cost, saved = priced(vendors)
    # 1.25 dollars per million input tokens, 0.125 cached, 10 for output.
    assert (source, cost, saved) == ("computed", Decimal("0.003575"), Decimal("0.000675"))
    assert priced(answer(model_name="of-nobody")) == ("unknown", None, None)
    assert priced(answer(model_name="of-nobody"), own, model="local:gpt-5") == (
        "project",
        Decimal("0.0027"),
        Decimal("0.0006"),
    )


@pytest.mark.parametrize("reported", [-1, "many", float("nan"), float("inf"), 10**9, None])
def test_invalid_reported_costs_are_ignored(reported: Any) -> None:
    routed = answer(model_name="of-nobody", provider_name="openrouter", provider_details={"cost": reported})
    assert priced(routed) == ("unknown", None, None)


@pytest.mark.parametrize("price", ["1", "100000"])
def test_implausibly_high_costs_are_ignored(price: str) -> None:
    """No column can store the cost of so many tokens."""
    used = RequestUsage(input_tokens=10**12, output_tokens=10**12, cache_read_tokens=10**12)
    own = ModelPrice(model="*", input=Decimal(price), output=Decimal(price), cache_read=Decimal(0))

    response = ModelResponse([TextPart("x")], usage=used, model_name="gpt-5", provider_name="openai")

    assert priced(response, own, model=MODEL) == ("unknown", None, None)
    assert priced(response) == ("unknown", None, None)


@pytest.mark.django_db(transaction=True)
def test_counts_too_large_for_a_column_do_not_fail_a_run(vendor: Vendor, worker: Worker) -> None:
    """They are treated as not reported; the others count."""
    agent = make_agent(provider="llm", model=MODEL, tools=[])
    vendor.answers = [says("Done.", prompt_tokens=2**63, prompt_tokens_details={"cached_tokens": 2**64})]

    run = drive(make_run(agent, "Go."), worker)

    assert (run.status, run.result) == ("completed", "Done.")
    usage = TurnUsage.objects.get(run=run)
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == (0, 300, 0)
    check(run)


@pytest.mark.django_db(transaction=True)
def test_a_new_price_applies_to_later_calls(vendor: Vendor, worker: Worker) -> None:
    agent = make_agent(provider="llm", model=MODEL, tools=[])
    vendor.answers = [says("Done.")]
    before = drive(make_run(agent, "Go."), worker)
    project_changes.set_price(agent.project, {"model": MODEL, "input": "2", "output": "4"}, by="test")
    after = drive(make_run(agent, "Go."), worker)

    assert cost_of(before) == ("computed", Decimal("0.003575"))
    # 1000 input and 300 output tokens, none of them cached or written to a cache.
    assert cost_of(after) == ("project", Decimal("0.0032"))
    [end] = [event for event in events(after) if event.type == "llm.turn.end"]
    assert (end.payload["cost_source"], end.payload["cost_usd"]) == ("project", "0.00320000")
    client = Client()
    client.force_login(make_person(agent.project))
    usage = client.get(f"/api/projects/{agent.project.slug}/agent-runs/{after.pk}/usage").json()
    buckets = {
        "fresh_input": 400,
        "cache_read": 600,
        "cache_write": 0,
        "cache_write_1h": 0,
        "visible_output": 200,
        "reasoning": 100,
    }
    for shown in (usage["totals"], usage["results"][0]):
        assert (shown["cost_source"], shown["cost_usd"], shown["buckets"]) == ("project", "0.00320000", buckets)
        assert (shown["input_tokens"], shown["output_tokens"]) == (1000, 300)
    page = client.get(f"/runs/{after.pk}").content.decode()
    assert ">by project prices</span>" in page
    assert '400 <span class="muted">fresh input</span>' in page
    check(before)
    check(after)


def cost_of(run: AgentRun) -> tuple[str, Decimal | None]:
    [row] = TurnUsage.objects.filter(run=run)
    run.refresh_from_db()
    assert (row.cost_source, row.cost_usd) == (run.cost_source, run.cost_usd)
    return row.cost_source, row.cost_usd
