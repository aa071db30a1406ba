"""Retry limits are settings of the site and of the agent: `max_retries`, `tool_max_retries`, `retry_base_delay_ms`."""

from __future__ import annotations

from typing import Any

import pytest

from runs.errors import InvalidAgent
from runs.lifecycle.creation import check_agent
from runs.providers.retries import InvalidRetryLimit, RetryLimits, retry_limits
from tests.support.factories import make_agent


def test_the_defaults_come_from_the_settings(settings: Any) -> None:
    assert retry_limits({}) == RetryLimits(max_retries=3, tool_max_retries=1, base_delay_s=0.5)
    settings.AGENTOPS_MAX_RETRIES, settings.AGENTOPS_TOOL_MAX_RETRIES = 7, 2
    settings.AGENTOPS_RETRY_BASE_DELAY_MS = 250
    assert retry_limits({}) == RetryLimits(max_retries=7, tool_max_retries=2, base_delay_s=0.25)


def test_settings_of_an_agent_override_the_site() -> None:
    given = {"max_retries": 0, "tool_max_retries": 4, "retry_base_delay_ms": 20}
    assert retry_limits(given) == RetryLimits(max_retries=0, tool_max_retries=4, base_delay_s=0.02)


@pytest.mark.parametrize("name", ["max_retries", "tool_max_retries", "retry_base_delay_ms"])
@pytest.mark.parametrize("value", [-1, 1.5, "3", True, [], 10**9])
def test_a_limit_must_be_a_whole_number(name: str, value: Any) -> None:
    with pytest.raises(InvalidRetryLimit, match=f"settings.{name} must be a whole number"):
        retry_limits({name: value})


@pytest.mark.django_db
def test_an_agent_with_a_bad_limit_is_refused() -> None:
    agent = make_agent(settings={"max_retries": "often"})
    with pytest.raises(InvalidAgent, match=r"settings\.max_retries"):
        check_agent(agent)
