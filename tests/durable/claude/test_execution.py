"""Runs of an agent of claude-agent-sdk: answers, tools, and the conversation that continues in another process."""

from __future__ import annotations

import json

from agentops.durable.claude import durable_function
from runs.models import AgentRunToolCall, Approval
from tests.support.claude_model import call
from tests.support.claude_rig import BASH, ClaudeRig, Shop
from tests.support.durable import DurableSite, steps_of


def test_a_run_with_own_tools_and_tools_of_the_program(durable_site: DurableSite, rig: ClaudeRig) -> None:
    shop = Shop()
    model = rig.model(
        [{"type": "text", "text": "Let me see."}, call("toolu_1", "mcp__shop__price", item="tea")],
        [BASH, call("toolu_3", "mcp__shop__charge", cents=500)],
        "All done.",
    )
    options = rig.options(
        model, mcp_servers={"shop": shop.server}, allowed_tools=["mcp__shop", "Bash"], system_prompt="You are a shop."
    )

    with durable_site.serving(durable_function(options, name="shop")):
        run = durable_site.completes(durable_site.start("shop", "Sell tea."))

    assert run.result == "All done."
    assert shop.calls == [("price", {"item": "tea"}), ("charge", {"cents": 500})]
    assert model.conversation == [
        ("user", ["Sell tea."]),
        ("assistant", ["Let me see.", 'mcp__shop__price({"item": "tea"})']),
        ("user", ["=tea: 500"]),
        ("assistant", [f"Bash({json.dumps(BASH['input'], sort_keys=True)})", 'mcp__shop__charge({"cents": 500})']),
        ("user", ["=from the shell", "=charged 500"]),
    ]
    assert [(name, state) for _, name, state in steps_of(run)] == [
        ("claude", "done"),
        ("mcp__shop__price", "done"),
        ("messages", "done"),
        ("claude", "done"),
        ("Bash", "done"),
        ("mcp__shop__charge", "done"),
        ("messages", "done"),
        ("claude", "done"),
        ("messages", "done"),
    ]
    calls = AgentRunToolCall.objects.filter(run=run).order_by("step_number", "pk")
    assert [(row.tool_name, row.effect) for row in calls] == [
        ("mcp__shop__price", "read"),
        ("Bash", "at_most_once"),
        ("mcp__shop__charge", "at_most_once"),
    ]
    # Each answer has 18 tokens of input, of which 3 and 5 are cached.
    assert (run.input_tokens, run.output_tokens) == (54, 21)
    assert run.cost_usd is not None


def test_a_person_decides_about_an_interrupted_subagent(durable_site: DurableSite, rig: ClaudeRig) -> None:
    """Its calls are no steps, so that a repeated sub-agent would make all of them again."""
    model = rig.model(
        [
            call("toolu_1", "Read", file_path="notes"),
            call("toolu_2", "Agent", prompt="Tidy up."),
            call("toolu_3", "Skill", skill="tidy"),
            call("toolu_4", "Task", prompt="Count."),
        ],
        "Done.",
    )
    function = durable_function(rig.options(model), name="tidy", effects={"Task": "read"})

    with durable_site.serving(function):
        run = durable_site.completes(durable_site.start("tidy"))

    calls = AgentRunToolCall.objects.filter(run=run).order_by("pk")
    assert {row.tool_name: row.effect for row in calls} == {
        "Read": "read",
        "Agent": "at_most_once",
        "Skill": "at_most_once",
        "Task": "read",
    }
    assert not Approval.objects.filter(run=run).exists()
