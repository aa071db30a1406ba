"""Tools of the SDK in durable runs: time limits, outputs, and agents that are tools."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, ComputerTool, RunConfig, ToolOutputImage, UserError, function_tool

from agentops.client import Client
from agentops.durable.openai_agents import durable_function, effect
from agentops.durable.openai_agents.durable_agents import durable_agent
from runs.models import AgentRunToolCall
from runs.statuses import RunStatus, ToolStatus
from tests.support.durable import DurableSite
from tests.support.sdk_model import ScriptedSdkModel, call, outputs, say


@pytest.fixture
def person(durable_site: DurableSite) -> Iterator[Client]:
    with Client(durable_site.site.url, durable_site.site.key("read", "write")) as client:
        yield client


@pytest.mark.django_db
def test_a_time_limit(durable_site: DurableSite) -> None:
    @function_tool(timeout=0.05)
    async def wait() -> str:
        await asyncio.sleep(60)
        return "late"

    def script(items: list[Any]) -> Any:
        return say(outputs(items)["c1"]) if outputs(items) else call("c1", "wait")

    agent = Agent(name="desk", model=ScriptedSdkModel(script), tools=[wait])
    with durable_site.serving(durable_function(agent)):
        run = durable_site.completes(durable_site.start("desk", "Wait."))

    assert run.result == "Tool 'wait' timed out after 0.05 seconds."


@pytest.mark.django_db
def test_outputs_of_other_types(durable_site: DurableSite) -> None:
    @function_tool
    def picture() -> ToolOutputImage:
        return ToolOutputImage(image_url="data:image/png;base64,AAAA")

    @function_tool
    def table() -> dict[str, int]:
        return {"rows": 2}

    @function_tool
    def handle() -> object:
        return Path("a/b")

    def script(items: list[Any]) -> Any:
        done = outputs(items)
        if not done:
            return [call("c1", "picture"), call("c2", "table"), call("c3", "handle")]
        return say(f"{done['c1'][0]['type']} {done['c2']} {done['c3']}")

    agent = Agent(name="desk", model=ScriptedSdkModel(script), tools=[picture, table, handle])
    with durable_site.serving(durable_function(agent)):
        run = durable_site.completes(durable_site.start("desk", "Show."))

    assert run.result == "input_image {'rows': 2} a/b"


@pytest.mark.django_db
def test_a_tool_without_text_for_failures_pauses_the_run(durable_site: DurableSite, person: Client) -> None:
    failures = ["disk full"]

    @effect("read")
    @function_tool(failure_error_function=None)
    def save() -> str:
        if failures:
            raise OSError(failures.pop())
        return "saved"

    def script(items: list[Any]) -> Any:
        return say(outputs(items)["c1"]) if outputs(items) else call("c1", "save")

    agent = Agent(name="desk", model=ScriptedSdkModel(script), tools=[save])
    with durable_site.serving(durable_function(agent)):
        run = durable_site.reaches(durable_site.start("desk", "Save."), RunStatus.PAUSED, reason="error")
        assert "disk full" in run.error_message
        person.resume(run.pk)
        run.refresh_from_db()
        successor = durable_site.completes(run.resumed_as)

    assert (successor.result, len(agent.model.inputs)) == ("saved", 2)


@pytest.mark.django_db
def test_an_approval_within_an_agent_that_is_a_tool(durable_site: DurableSite, person: Client) -> None:
    """The run waits for the inner approval without a process, while the call of the outer tool is open."""
    executed: list[int] = []

    @function_tool(needs_approval=True)
    def pay(cents: int) -> str:
        executed.append(cents)
        return f"paid {cents}"

    def inner_script(items: list[Any]) -> Any:
        return say(outputs(items)["n1"]) if outputs(items) else call("n1", "pay", cents=5)

    inner = Agent(name="cashier", model=ScriptedSdkModel(inner_script), tools=[pay])

    def outer_script(items: list[Any]) -> Any:
        return say(outputs(items)["c1"]) if outputs(items) else call("c1", "cashier", input="Pay.")

    outer = Agent(name="desk", model=ScriptedSdkModel(outer_script), tools=[inner.as_tool("cashier", "Pays.")])
    with durable_site.serving(durable_function(outer)):
        run = durable_site.reaches(durable_site.start("desk", "Pay."), RunStatus.WAITING, reason="approval")
        [approval] = person.approvals(run_id=str(run.pk), state="pending")
        person.approve(run.pk, approval.call_id)
        durable_site.completes(run)

    assert (run.result, executed) == ("paid 5", [5])
    assert (len(outer.model.inputs), len(inner.model.inputs)) == (2, 2)
    statuses = AgentRunToolCall.objects.filter(run=run).values_list("tool_name", "status")
    assert set(statuses) == {("cashier", ToolStatus.COMPLETED), ("pay", ToolStatus.COMPLETED)}


@pytest.mark.django_db
def test_calls_that_the_sdk_answers_itself_get_their_result(durable_site: DurableSite) -> None:
    def script(items: list[Any]) -> Any:
        return say(outputs(items)["c1"]) if outputs(items) else call("c1", "no_such_tool")

    agent = Agent(name="desk", model=ScriptedSdkModel(script))
    config = RunConfig(tool_not_found_behavior="return_error_to_model")
    with durable_site.serving(durable_function(agent, run_config=config)):
        run = durable_site.completes(durable_site.start("desk", "Help."))

    [row] = AgentRunToolCall.objects.filter(run=run)
    assert (row.status, row.output) == (ToolStatus.COMPLETED, run.result)


@pytest.mark.django_db
@pytest.mark.parametrize("call_id", ["call_0", ""])
def test_each_call_is_executed_even_if_the_model_repeats_its_id(
    durable_site: DurableSite, person: Client, call_id: str
) -> None:
    executed: list[str] = []

    @function_tool
    def look_up(order: str) -> str:
        executed.append(order)
        return f"order {order}"

    @function_tool(needs_approval=True)
    def refund(order: str) -> str:
        executed.append(f"refund {order}")
        return f"refund of {order}"

    def script(items: list[Any]) -> Any:
        done = [item["output"] for item in items if item.get("type") == "function_call_output"]
        if not done:
            return [call(call_id, "look_up", order="1"), call(call_id, "look_up", order="2")]
        return say(", ".join(done)) if len(done) == 3 else call(call_id, "refund", order="2")

    agent = Agent(name="desk", model=ScriptedSdkModel(script), tools=[look_up, refund])
    with durable_site.serving(durable_function(agent)):
        run = durable_site.reaches(durable_site.start("desk", "Refund."), RunStatus.WAITING, reason="approval")
    # Another process reads the first answer, with its new IDs, from the journal.
    with durable_site.serving(durable_function(agent)):
        [approval] = person.approvals(run_id=str(run.pk), kind="approval", state="pending")
        person.approve(run.pk, approval.call_id)
        durable_site.completes(run)

    assert run.result == "order 1, order 2, refund of 2"
    assert sorted(executed) == ["1", "2", "refund 2"]
    assert len(agent.model.inputs) == 3
    ids = AgentRunToolCall.objects.filter(run=run).values_list("call_id", flat=True)
    assert len(set(ids)) == 3


@pytest.mark.django_db
def test_a_tool_that_ends_the_run(durable_site: DurableSite) -> None:
    @effect("read")
    @function_tool
    def answer() -> str:
        return "42"

    model = ScriptedSdkModel(lambda items: call("c1", "answer"))
    agent = Agent(name="desk", model=model, tools=[answer], tool_use_behavior="stop_on_first_tool")
    with durable_site.serving(durable_function(agent, effects={"answer": "idempotent"})):
        run = durable_site.completes(durable_site.start("desk", "Why?"))

    [row] = AgentRunToolCall.objects.filter(run=run)
    assert (run.result, row.effect) == ("42", "idempotent")


def test_tools_that_cannot_be_steps_are_refused() -> None:
    class Screen:
        environment = "linux"

    agent = Agent(name="desk", tools=[ComputerTool(computer=Screen())])  # type: ignore[arg-type]
    with pytest.raises(UserError, match="ComputerTool cannot be used in a durable run"):
        durable_agent(agent)


def test_invalid_effects_are_refused() -> None:
    with pytest.raises(ValueError, match="'never' must be"):
        effect("never")  # type: ignore[arg-type]
