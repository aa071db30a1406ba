"""Whole runs of durable agents: on the site, and for the agents."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterable
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext, ToolOutput
from pydantic_ai.messages import AgentStreamEvent, ModelResponse, TextPart, ThinkingPart
from pydantic_ai.usage import RequestUsage

from agentops.client import Client
from agentops.durable import DurableRun, durable
from agentops.durable.pydantic_ai import AgentopsDurability, durable_function
from runs.models import AgentRunMessage, AgentRunToolCall, TurnUsage
from runs.statuses import RunStatus
from tests.support.durable import DurableSite, steps_of
from tests.support.pydantic_agents import Script, call, durable_agent, results_of
from timeline.models import Event

USAGE = RequestUsage(input_tokens=20, output_tokens=9, cache_read_tokens=5, output_reasoning_tokens=4)


class Shop:
    def __init__(self, run_id: str) -> None:
        self.run_id = run_id


def test_the_timeline_shows_requests_and_tools(durable_site: DurableSite) -> None:
    """Text, thinking, calls, usage, provider, model and finish reason; parallel tools run at the same time."""
    first = ModelResponse(
        parts=[
            ThinkingPart("Hm."),
            TextPart("I look."),
            call("look_up", "c1", order=1),
            call("look_up", "c2", order=2),
        ],
        usage=USAGE,
        provider_name="anthropic",
        finish_reason="tool_call",
    )
    script = Script(first, "Both are late.", name="claude-sonnet-4-5")
    agent = durable_agent(script, durability={"streams": False})
    both = asyncio.Barrier(2)

    @agent.tool_plain
    async def look_up(order: int) -> dict[str, Any]:
        await asyncio.wait_for(both.wait(), 60)
        return {"order": order, "late": True}

    with durable_site.serving(durable_function(agent, description="Helps.")):
        run = durable_site.completes(durable_site.start("support", "Where are my orders?"))

    assert run.result == "Both are late."
    assert [len(messages) for messages in script.requests] == [1, 3]
    assert script.requests[0][0].parts[0].content == "Where are my orders?"
    calls = AgentRunToolCall.objects.filter(run=run).order_by("call_id")
    assert [(row.call_id, row.input, row.output, row.status) for row in calls] == [
        ("c1", {"order": 1}, '{"late":true,"order":1}', "completed"),
        ("c2", {"order": 2}, '{"late":true,"order":2}', "completed"),
    ]
    answer = AgentRunMessage.objects.filter(run=run, role="assistant").earliest("position")
    assert [part["part_kind"] for part in answer.content["parts"]] == ["thinking", "text", "tool-call", "tool-call"]
    assert (answer.model, answer.content["provider_name"]) == ("claude-sonnet-4-5", "anthropic")
    usage = TurnUsage.objects.filter(run=run).earliest("step_number")
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == (20, 9, 5)
    assert usage.cost_usd
    ends = Event.objects.filter(log=run.pk, type="llm.turn.end").order_by("seq")
    assert ends[0].payload["finish_reason"] == "tool_call"


def test_structured_output_is_the_result(durable_site: DurableSite) -> None:
    class Verdict(BaseModel):
        guilty: bool
        years: int

    script = Script([call("final_result", guilty=True, years=-1)], [call("final_result", guilty=True, years=3)])
    agent = durable_agent(script, output_type=ToolOutput(Verdict))

    @agent.output_validator
    def check(verdict: Verdict) -> Verdict:
        if verdict.years < 0:
            raise ModelRetry("not negative")
        return verdict

    with durable_site.serving(durable_function(agent)):
        run = durable_site.completes(durable_site.start("support"))

    assert "".join(run.result.split()) == '{"guilty":true,"years":3}'
    assert len(script.requests) == 2
    assert not AgentRunToolCall.objects.filter(run=run).exists()
    answer = AgentRunMessage.objects.filter(run=run, role="assistant").latest("position")
    assert answer.content["parts"][0]["content"] == '{"guilty":true,"years":3}'


def test_dependencies_are_created_for_each_run(durable_site: DurableSite) -> None:
    async def open_shop(run: DurableRun) -> Shop:
        return Shop(run.id)

    script = Script([call("name")], "done")
    agent = durable_agent(script, deps_type=Shop)

    @agent.tool
    def name(ctx: RunContext[Shop]) -> str:
        return ctx.deps.run_id

    with pytest.raises(TypeError, match="needs dependencies of the type Shop"):
        durable_function(agent)
    with durable_site.serving(durable_function(agent, deps=open_shop)):
        run = durable_site.completes(durable_site.start("support"))

    assert results_of(script.requests[-1]) == {"name": str(run.pk)}


def test_text_streams_and_a_handler_gets_each_event_once(durable_site: DurableSite, person: Client) -> None:
    kinds: list[str] = []

    async def handle(ctx: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
        async for event in events:
            kinds.append(event.event_kind)

    script = Script([TextPart("I wait"), call("rest")], "I am done")
    agent = Agent(script.streaming, name="support", capabilities=[AgentopsDurability(event_stream_handler=handle)])
    agent.tool_plain(requires_approval=True)(rest)

    with durable_site.serving(durable_function(agent)):
        run = durable_site.start("support")
        durable_site.reaches(run, RunStatus.WAITING)
        [approval] = person.approvals(run_id=str(run.pk), state="pending")
        person.approve(run.pk, approval.call_id)
        durable_site.completes(run)

    texts = Event.objects.filter(log=run.pk, type="llm.text.delta").order_by("seq")
    assert "".join(event.payload["text"] for event in texts) == "I wait I am done "
    assert kinds.count("function_tool_call") == kinds.count("function_tool_result") == 1


def rest() -> str:
    """Rest."""
    return "rested"


def test_an_agent_in_a_durable_function(durable_site: DurableSite) -> None:
    """Two agents of one function: their steps have keys below the positions of the calls."""
    writer, critic = Script([call("note")], "A poem."), Script("Nice.")
    first, second = durable_agent(writer, "writer"), durable_agent(critic, "critic")
    first.tool_plain(metadata={"agentops": {"effect": "read"}})(note)

    @durable("poems")
    async def poems(run: DurableRun, prompt: str) -> str:
        poem = await first.run(prompt)
        words = await run.step("count", len, poem.output, effect="read")
        verdict, again = await asyncio.gather(second.run(poem.output), second.run("again"))
        return f"{poem.output} {words} {verdict.output} {again.output}"

    with durable_site.serving(poems):
        run = durable_site.completes(durable_site.start("poems"))

    assert run.result == "A poem. 7 Nice. Nice."
    models = [key for key, name, _ in steps_of(run) if name == "model request"]
    assert sorted(models) == ["1/request/1", "1/request/2", "3/request/1", "4/request/1"]


def note() -> str:
    """Note something."""
    return "noted"


def test_the_capability_does_nothing_outside_of_a_durable_run() -> None:
    script = Script([call("note")], "done")
    agent = durable_agent(script)
    agent.tool_plain(note)

    result = asyncio.run(agent.run("Go."))

    assert (result.output, results_of(script.requests[-1])) == ("done", {"note": "noted"})


def test_a_run_that_has_ended_does_not_stay_in_memory(durable_site: DurableSite) -> None:
    agent = durable_agent(Script("done"))
    runs: list[weakref.ref[DurableRun]] = []

    @durable("desk")
    async def desk(run: DurableRun, prompt: str) -> str:
        runs.append(weakref.ref(run))
        return (await agent.run(prompt)).output

    with durable_site.serving(desk):
        durable_site.completes(durable_site.start("desk"))
    gc.collect()

    assert [run() for run in runs] == [None]
