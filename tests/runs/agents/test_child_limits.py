"""Limits of child runs are settings of the site, which an agent can lower: `max_child_depth`, `max_children`."""

from __future__ import annotations

from typing import Any

import pytest
from pytest_django import Settings

from runs.agents.budgets import ChildLimits, InvalidChildLimit, child_limits
from runs.errors import InvalidAgent
from runs.lifecycle.creation import check_agent
from tests.support.factories import make_agent


def test_an_agent_lowers_the_limits_of_the_site_and_never_raises_them(settings: Settings) -> None:
    assert child_limits({}) == ChildLimits(depth=2, children=20)
    settings.AGENTOPS_MAX_CHILD_DEPTH, settings.AGENTOPS_MAX_CHILDREN = 3, 5
    assert child_limits({}) == ChildLimits(depth=3, children=5)
    assert child_limits({"max_child_depth": 0, "max_children": 4}) == ChildLimits(depth=0, children=4)
    assert child_limits({"max_child_depth": 10, "max_children": 1000}) == ChildLimits(depth=3, children=5)


@pytest.mark.parametrize("name", ["max_child_depth", "max_children"])
@pytest.mark.parametrize("value", [-1, 1.5, "3", True, [], 1001])
def test_a_limit_must_be_a_whole_number(name: str, value: Any) -> None:
    with pytest.raises(InvalidChildLimit, match=f"settings.{name} must be a whole number"):
        child_limits({name: value})


@pytest.mark.django_db
def test_an_agent_with_a_bad_limit_is_refused() -> None:
    with pytest.raises(InvalidAgent, match=r"settings\.max_children"):
        check_agent(make_agent(settings={"max_children": "many"}))
