"""Agents of the OpenAI Agents SDK as durable runs: model calls, tools, handoffs, and a second execution."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agents import Agent, Runner, RunResultStreaming, function_tool
from pydantic import BaseModel

from agentops.durable import DurableRun, durable
from agentops.durable.openai_agents import AgentopsRunner, durable_function, effect, idempotency_key
from runs.models import AgentRunToolCall, RemoteStep, TurnUsage
from runs.statuses import RunStatus, ToolStatus
from tests.support.durable import DurableSite, steps_of
from tests.support.sdk_model import ScriptedSdkModel, call, outputs, say
from tests.support.timing import eventually
from timeline.models import Event

pytestmark = pytest.mark.django_db


def order_script(items: list[Any]) -> Any:
    results = outputs(items)
    if not results:
        return [call("c1", "look_up", order="17"), call("c2", "look_up", order="18")]
    return say(f"{results['c1']} and {results['c2']}")


def test_it_works(durable_site: DurableSite) -> None:
    executed: list[str] = []

    @effect("read")
    @function_tool
    async def look_up(order: str) -> str:
        executed.append(order)
        return f"order {order} is sent"

    model = ScriptedSdkModel(order_script)
    desk = Agent(name="Order desk", model=model, tools=[look_up])

    with durable_site.serving(durable_function(desk, streams=True)):
        run = durable_site.completes(durable_site.start("order-desk", "Where are my orders?"))

    assert run.result == "order 17 is sent and order 18 is sent"
    assert sorted(executed) == ["17", "18"]
    calls = AgentRunToolCall.objects.filter(run=run).order_by("call_id")
    assert list(calls.values_list("call_id", "tool_name", "status", "effect")) == [
        ("c1", "look_up", "completed", "read"),
        ("c2", "look_up", "completed", "read"),
    ]
    usage = TurnUsage.objects.filter(run=run).order_by("step_number").first()
    assert usage is not None
    assert (usage.input_tokens, usage.cache_read_tokens, usage.output_tokens) == (50, 20, 10)
    # The site knows the price of this model of this provider.
    assert usage.cost_usd is not None
    assert "order 17 is sent" in "".join(
        Event.objects.filter(log_id=run.pk, type="llm.text.delta").values_list("payload__text", flat=True)
    )


def test_a_second_process_repeats_nothing(durable_site: DurableSite) -> None:
    executed: list[str] = []
    held = asyncio.Event()

    @effect("idempotent")
    @function_tool
    async def pay(order: str) -> str:
        executed.append(f"{order} {idempotency_key()}")
        if order == "2" and len(executed) == 2:
            await held.wait()
        return f"paid {order}"

    def script(items: list[Any]) -> Any:
        done = len(outputs(items))
        return call(f"c{done + 1}", "pay", order=str(done + 1)) if done < 3 else say("All paid.")

    model = ScriptedSdkModel(script)
    agent = Agent(name="payer", model=model, tools=[pay])
    first = durable_site.serving(durable_function(agent), grace_s=0.1)
    with first:
        run = durable_site.start("payer", "Pay.")
        durable_site.at_step(run, "pay")
        eventually(lambda: len(executed) == 2, why="the second payment has begun")
    with durable_site.serving(durable_function(agent)):
        durable_site.completes(run)

    assert [entry.split()[0] for entry in executed] == ["1", "2", "2", "3"]
    assert executed[1] == executed[2]
    assert len(model.inputs) == 4
    assert run.result == "All paid."


def test_a_handoff_is_an_event(durable_site: DurableSite) -> None:
    def clerk_script(items: list[Any]) -> Any:
        return say(f"The clerk says {outputs(items)['c1']}.")

    clerk = Agent(name="clerk", model=ScriptedSdkModel(clerk_script))
    desk = Agent(name="desk", model=ScriptedSdkModel(lambda items: call("c1", "transfer_to_clerk")), handoffs=[clerk])
    with durable_site.serving(durable_function(desk)):
        run = durable_site.completes(durable_site.start("desk", "Help."))

    assert run.result == 'The clerk says {"assistant": "clerk"}.'
    event = Event.objects.get(log_id=run.pk, type="handoff")
    assert event.payload == {"from_agent": "desk", "to_agent": "clerk", "call_id": "c1"}
    [row] = AgentRunToolCall.objects.filter(run=run)
    assert (row.tool_name, row.status) == ("transfer_to_clerk", ToolStatus.COMPLETED)


def test_an_agent_as_tool_has_steps_of_the_same_run(durable_site: DurableSite) -> None:
    @function_tool
    async def count(text: str) -> int:
        return len(text)

    def inner_script(items: list[Any]) -> Any:
        return say(f"{outputs(items)['n1']} letters") if outputs(items) else call("n1", "count", text="tides")

    inner = Agent(name="counter", model=ScriptedSdkModel(inner_script), tools=[count])

    def outer_script(items: list[Any]) -> Any:
        return say(f"It has {outputs(items)['c1']}.") if outputs(items) else call("c1", "ask_counter", input="tides")

    tool = inner.as_tool("ask_counter", "Counts letters.")
    outer = Agent(name="desk", model=ScriptedSdkModel(outer_script), tools=[tool])
    with durable_site.serving(durable_function(outer)):
        run = durable_site.completes(durable_site.start("desk", "Count."))

    assert run.result == "It has 5 letters."
    names = [name for _, name, _ in steps_of(run) if name != "messages"]
    assert names == ["gpt-5", "ask_counter", "gpt-5", "count", "gpt-5", "gpt-5"]


def test_an_agent_as_tool_is_a_child_run(durable_site: DurableSite) -> None:
    inner = Agent(name="Text counter", model=ScriptedSdkModel(lambda items: say("5 letters")))

    def outer_script(items: list[Any]) -> Any:
        return say(f"It has {outputs(items)['c1']}.") if outputs(items) else call("c1", "ask_counter", input="tides")

    outer = Agent(name="desk", model=ScriptedSdkModel(outer_script), tools=[inner.as_tool("ask_counter", "Counts.")])
    with durable_site.serving(durable_function(outer, children=[inner]), durable_function(inner)):
        run = durable_site.completes(durable_site.start("desk", "Count."))

    assert run.result == "It has 5 letters."
    child = run.children.get()
    assert (child.agent_config["agent_id"], child.result, child.prompt) == ("text-counter", "5 letters", "tides")


def test_the_model_gets_the_failure_of_a_tool(durable_site: DurableSite) -> None:
    @function_tool(failure_error_function=lambda context, error: f"It failed: {error}")
    async def look_up(order: str) -> str:
        raise LookupError(f"no order {order}")

    def script(items: list[Any]) -> Any:
        return say(outputs(items)["c1"]) if outputs(items) else call("c1", "look_up", order="17")

    agent = Agent(name="desk", model=ScriptedSdkModel(script), tools=[look_up])
    with durable_site.serving(durable_function(agent)):
        run = durable_site.completes(durable_site.start("desk", "Help."))

    assert run.result == "It failed: no order 17"
    [row] = AgentRunToolCall.objects.filter(run=run)
    assert (row.status, row.output) == (ToolStatus.ERROR, "LookupError: no order 17")


def test_output_type_and_runner_in_a_function(durable_site: DurableSite) -> None:
    class Verdict(BaseModel):
        is_good: bool

    agent = Agent(name="judge", model=ScriptedSdkModel(lambda items: say('{"is_good": true}')), output_type=Verdict)

    @durable("judging")
    async def judging(run: DurableRun, prompt: str) -> dict[str, Any]:
        first = await AgentopsRunner.run(agent, prompt)
        stamp = await run.step("stamp", lambda: "stamped")
        second = await AgentopsRunner.run(agent, "Again.")
        return {"first": first.final_output.is_good, "stamp": stamp, "second": second.final_output.is_good}

    with durable_site.serving(judging):
        run = durable_site.completes(durable_site.start("judging", "Judge."))

    assert run.result is not None
    assert '"first": true' in run.result
    assert [key for key, name, _ in steps_of(run) if name == "gpt-5"] == ["1.model.1", "3.model.1"]


async def streamed(agent: Agent[Any], **options: Any) -> RunResultStreaming:
    """Execute an agent with all options of the runner, and return its stream at the end."""
    given: dict[str, Any] = {"effects": None, "children": (), "retries": 1, "streams": True, "provider": "openai"}
    result = AgentopsRunner.run_streamed(agent, "Hi.", **{**given, **options})
    async for _ in result.stream_events():
        pass
    return result


def test_a_streamed_agent_takes_the_options_of_run(durable_site: DurableSite) -> None:
    inner = Agent(name="Text counter", model=ScriptedSdkModel(lambda items: say("5 letters")))

    def script(items: list[Any]) -> Any:
        return say(f"It has {outputs(items)['c1']}.") if outputs(items) else call("c1", "ask_counter", input="tides")

    outer = Agent(name="desk", model=ScriptedSdkModel(script), tools=[inner.as_tool("ask_counter", "Counts.")])

    @durable("streaming")
    async def streaming(run: DurableRun, prompt: str) -> Any:
        return (await streamed(outer, children=[inner])).final_output

    with durable_site.serving(streaming, durable_function(inner)):
        run = durable_site.completes(durable_site.start("streaming"))

    assert run.result == "It has 5 letters."
    assert run.children.get().agent_config["agent_id"] == "text-counter"


def test_outside_of_a_durable_run_it_is_the_runner_of_the_sdk() -> None:
    agent = Agent(name="desk", model=ScriptedSdkModel(lambda items: say("Hello.")))

    result = asyncio.run(AgentopsRunner.run(agent, "Hi."))
    plain = asyncio.run(Runner.run(agent, "Hi."))

    assert result.final_output == plain.final_output == "Hello."
    assert result.last_agent is agent
    assert asyncio.run(streamed(agent)).final_output == "Hello."
    assert not RemoteStep.objects.exists()


def test_a_mistake_of_the_model_pauses_the_run(durable_site: DurableSite) -> None:
    agent = Agent(name="desk", model=ScriptedSdkModel(lambda items: call("c1", "no_such_tool")))
    with durable_site.serving(durable_function(agent)):
        run = durable_site.reaches(durable_site.start("desk", "Help."), RunStatus.PAUSED)

    assert "no_such_tool" in run.error_message
