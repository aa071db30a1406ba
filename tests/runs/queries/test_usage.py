"""The usage of a run by model: in the API, and on its page if there are several models."""

from __future__ import annotations

from decimal import Decimal

import pytest
from django.test import Client
from django.utils import timezone

from agentops.accounts.models import Role
from runs.models import AgentRun, TurnUsage
from tests.support.factories import make_agent, make_person, make_run

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.breaks_invariants("rows of model calls without the messages, and the totals, that belong to them"),
]


@pytest.fixture
def run() -> AgentRun:
    return make_run(make_agent(), "Go.")


@pytest.fixture
def client(run: AgentRun) -> Client:
    client = Client()
    client.force_login(make_person(run.project, Role.VIEWER))
    return client


def use(run: AgentRun, model: str, cost: str | None, **tokens: int) -> None:
    price = None if cost is None else Decimal(cost)
    step = TurnUsage.objects.filter(run=run).count() + 1
    TurnUsage.objects.create(
        run=run, step_number=step, model=model, cost_usd=price, created_at=timezone.now(), **tokens
    )


def page_of(client: Client, run: AgentRun) -> str:
    return " ".join(client.get(f"/runs/{run.pk}").content.decode().split())


def test_each_model_has_its_tokens_and_cost(run: AgentRun, client: Client) -> None:
    use(run, "small", "0.25", input_tokens=1000, output_tokens=200, cache_read_tokens=900)
    use(run, "large", None, input_tokens=10, output_tokens=5)
    use(run, "small", "0.50", input_tokens=500, output_tokens=100, reasoning_tokens=60)

    answer = client.get(f"/api/projects/{run.project.slug}/agent-runs/{run.pk}/usage?limit=1").json()

    none = {"cache_read_tokens": 0, "cache_write_tokens": 0, "cache_write_1h_tokens": 0, "reasoning_tokens": 0}
    assert answer["models"] == [
        {
            "model": "large",
            "calls": 1,
            "input_tokens": 10,
            "output_tokens": 5,
            "cost_usd": None,
            "unpriced_calls": 1,
            **none,
        },
        {
            "model": "small",
            "calls": 2,
            "input_tokens": 1500,
            "output_tokens": 300,
            "cache_read_tokens": 900,
            "cache_write_tokens": 0,
            "cache_write_1h_tokens": 0,
            "reasoning_tokens": 60,
            "cost_usd": "0.75000000",
            "unpriced_calls": 0,
        },
    ]
    page = page_of(client, run)
    assert '<bdi>large</bdi> <span class="muted">unpriced · 15 tokens · 1 call<' in page
    assert '<bdi>small</bdi> <span class="muted">$0.7500 · 1,800 tokens · 2 calls' in page


def test_a_page_of_one_model_does_not_repeat_its_totals(run: AgentRun, client: Client) -> None:
    use(run, "small", "0.25", input_tokens=1000)
    use(run, "small", "0.25", input_tokens=1000)

    assert "By model" not in page_of(client, run)
