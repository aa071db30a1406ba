"""Budgets: their validation, the warning threshold and the limit."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from runs.actions import agent_definitions
from runs.agents.budgets import Budget, InvalidBudget, day_limits, describe, exhausted, nearly_exhausted, run_limits
from runs.errors import InvalidAgent
from tests.support.factories import make_agent, make_project, make_run


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {}),
        ({"budgets": None}, {}),
        ({"budgets": {}}, {}),
        ({"budgets": {"tokens": None, "wall_s": 0.5}}, {Budget.WALL: Decimal("0.5")}),
        ({"budgets": {"tokens": 1}}, {Budget.TOKENS: Decimal(1)}),
        ({"budgets": {"cost_usd": 0.1}}, {Budget.COST: Decimal("0.1")}),
        ({"budgets": {"cost_usd": "0.30"}}, {Budget.COST: Decimal("0.30")}),
    ],
)
def test_valid_budgets_of_an_agent(settings: dict[str, Any], expected: dict[Budget, Decimal]) -> None:
    assert run_limits(settings) == expected


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([], "must be an object"),
        (5, "must be an object"),
        ({"token": 5}, "'token'"),
        ({"tokens_per_day": 5}, "'tokens_per_day'"),
        ({"tokens": 0}, "tokens must be a whole number above 0"),
        ({"tokens": -1}, "tokens must be a whole number above 0"),
        ({"tokens": True}, "tokens must be a whole number above 0"),
        ({"tokens": 1.5}, "tokens must be a whole number above 0"),
        ({"tokens": "5"}, "tokens must be a whole number above 0"),
        ({"tokens": 2**63}, "tokens must be a whole number above 0"),
        ({"wall_s": "5"}, "wall_s must be a number above 0"),
        ({"wall_s": float("nan")}, "wall_s must be a number above 0"),
        ({"wall_s": float("inf")}, "wall_s must be a number above 0"),
        ({"cost_usd": "NaN"}, "cost_usd must be a number above 0"),
        ({"cost_usd": "cheap"}, "cost_usd must be a number above 0"),
        ({"cost_usd": 0}, "cost_usd must be a number above 0"),
        ({"cost_usd": "1e-999999"}, "cost_usd must be a number above 0"),
        ({"wall_s": 1e-300}, "wall_s must be a number above 0"),
        ({"cost_usd": [1]}, "cost_usd must be a number above 0"),
    ],
)
def test_invalid_budgets_of_an_agent(given: Any, why: str) -> None:
    with pytest.raises(InvalidBudget, match=why):
        run_limits({"budgets": given})


def test_budgets_of_a_project() -> None:
    assert day_limits({"budgets": {"tokens_per_day": 5}}) == {Budget.TOKENS_PER_DAY: Decimal(5)}
    with pytest.raises(InvalidBudget, match="'tokens'"):
        day_limits({"budgets": {"tokens": 5}})
    with pytest.raises(InvalidBudget, match="must be an object"):
        day_limits([])


@pytest.mark.parametrize(
    ("used", "near", "over"),
    [
        ("0", False, False),
        ("79.99", False, False),
        ("80", True, False),
        ("99.99", True, False),
        ("100", True, True),
        ("250", True, True),
    ],
)
def test_a_budget_warns_at_80_percent_and_is_used_up_at_its_limit(used: str, near: bool, over: bool) -> None:
    limits, amounts = {Budget.COST: Decimal(100)}, {Budget.COST: Decimal(used), Budget.TOKENS: Decimal(10**9)}

    assert nearly_exhausted(limits, amounts) == [Budget.COST] * near
    assert exhausted(limits, amounts) == [Budget.COST] * over


@pytest.mark.parametrize(
    ("budget", "used", "limit", "expected"),
    [
        (Budget.TOKENS, "1234567", "1000000", "1,234,567 of 1,000,000 tokens, exceeded"),
        (Budget.COST, "0.51000000", "0.5", "$0.51 of $0.5, exceeded"),
        (Budget.COST, "1000.00000000", "1E+3", "$1,000 of $1,000"),
        (Budget.WALL, "61.4", "60", "61 of 60 seconds of execution, exceeded"),
        (Budget.TOKENS_PER_DAY, "7", "5", "7 of 5 tokens used by the project today, exceeded"),
        (Budget.COST_PER_DAY, "0.00000001", "5", "$0.00000001 of $5 used by the project today"),
    ],
)
def test_description_of_a_budget(budget: Budget, used: str, limit: str, expected: str) -> None:
    assert describe(budget, Decimal(used), Decimal(limit)) == expected


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"budgets": {"tokens": 0}}, "tokens must be"),
        ({"context_window": 0}, "context_window must be"),
        ({"context_window": "8k"}, "context_window must be"),
        ({"context_window": True}, "context_window must be"),
    ],
    ids=str,
)
def test_a_run_with_an_unenforceable_budget_is_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidAgent, match=why):
        make_run(make_agent(settings=settings))


@pytest.mark.django_db
def test_an_agent_definition_with_an_unenforceable_budget_is_refused() -> None:
    definition = {"agent_id": "limited", "provider": "fixture", "model": "claude-code-5c", "tools": ["recorded"]}
    project = make_project()
    with pytest.raises(InvalidAgent, match=r"settings\.budgets\.wall_s must be") as refused:
        agent_definitions.apply(project, {**definition, "settings": {"budgets": {"wall_s": -1}}}, by="system")
    assert refused.value.data["pointer"] == "/settings/budgets/wall_s"

    agent, outcome = agent_definitions.apply(
        project, {**definition, "settings": {"budgets": {"wall_s": 1}}}, by="system"
    )
    assert (agent.settings, outcome) == ({"budgets": {"wall_s": 1}}, "created")
