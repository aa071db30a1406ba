"""Tests of your own agents and flows, on recordings instead of a model; see docs/guides/testing.md.

def test_a_refund(agentops):
    result = agentops.run("agent.toml", "tests/fixtures/refund.json")
    result.assert_completed()
    result.assert_tool_calls("order_status", "refund")
"""

from __future__ import annotations

from agentops.testing.run_results import FlowResult, Message, RunResult, ToolCall, UnusableFixture
from agentops.testing.tester import AgentTester

__all__ = ["AgentTester", "FlowResult", "Message", "RunResult", "ToolCall", "UnusableFixture"]
