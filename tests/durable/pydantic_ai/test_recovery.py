"""A durable agent in another process reads the journal: no model request and no tool call is repeated."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import ModelFallback
from pydantic_ai.exceptions import ModelHTTPError, ModelRetry, ToolFailed

from agentops.client import Client
from agentops.durable.pydantic_ai import AgentopsDurability, durable_function, idempotency_key
from runs.models import AgentRunToolCall
from runs.statuses import RunStatus
from tests.support.durable import DurableSite, steps_of
from tests.support.pydantic_agents import Script, call, durable_agent, results_of

WAITING, PAUSED = RunStatus.WAITING, RunStatus.PAUSED


class Blocking:
    """A tool that blocks in its first call until its process ends."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    async def send(self) -> str:
        """Send it."""
        self.keys.append(idempotency_key())
        if len(self.keys) == 1:
            await asyncio.Event().wait()
        return "sent"


@pytest.mark.parametrize("effect", ["idempotent", "once"])
def test_an_interrupted_tool(durable_site: DurableSite, person: Client, effect: str) -> None:
    """`once`: a person says what happened. Everything before is read from the journal."""
    script = Script([call("count")], [call("send")], "done")
    agent = durable_agent(script)
    tool, counted = Blocking(), []

    @agent.tool_plain
    def count() -> int:
        counted.append(1)
        return len(counted)

    agent.tool_plain(metadata={"agentops": {"effect": effect}})(tool.send)
    with durable_site.serving(durable_function(agent), grace_s=0.05) as process:
        run = durable_site.start("support")
        durable_site.at_step(run, "send")
        process.end()
    with durable_site.serving(durable_function(agent)):
        if effect == "once":
            durable_site.reaches(run, WAITING)
            assert (run.status_reason, len(tool.keys)) == ("unknown_tool", 1)
            unknown = AgentRunToolCall.objects.get(run=run, tool_name="send")
            person.resolve_call(run.pk, unknown.pk, "done", "It was sent.")
        durable_site.completes(run)

    assert (run.result, len(counted), len(script.requests)) == ("done", 1, 3)
    if effect == "once":
        assert results_of(script.requests[-1])["send"] == "It was sent."
    else:
        assert tool.keys[0] == tool.keys[1] != ""


def test_all_forms_of_results_are_read_back(durable_site: DurableSite, person: Client) -> None:
    """Results, requests to try again, failures and answers of the model are the same in another process."""
    script = Script(
        [call("table"), call("strict", number=1), call("fails"), call("wrong", "w1", number="x")],
        [call("strict", "strict2", number=2), call("unknown")],
        [call("wait")],
        "done",
    )
    agent = durable_agent(script, retries=3)
    done: list[str] = []

    @agent.tool_plain
    def table() -> dict[str, Any]:
        done.append("table")
        return {"kind": "tool-return", "rows": [{"a": 1}, None, 2.5]}

    @agent.tool_plain
    def strict(number: int) -> list[int]:
        done.append("strict")
        if number == 1:
            raise ModelRetry("give 2")
        return [number]

    @agent.tool_plain
    def fails() -> str:
        done.append("fails")
        raise ToolFailed("no luck")

    @agent.tool_plain
    def wrong(number: int) -> str:
        return "never"

    @agent.tool_plain(requires_approval=True)
    def wait() -> str:
        return "waited"

    with durable_site.serving(durable_function(agent)):
        run = durable_site.reaches(durable_site.start("support"), WAITING)
    before = [list(messages) for messages in script.requests]
    with durable_site.serving(durable_function(agent)):
        [approval] = person.approvals(run_id=str(run.pk), state="pending")
        person.approve(run.pk, approval.call_id)
        durable_site.completes(run)

    assert sorted(done) == ["fails", "strict", "strict", "table"]
    assert len(script.requests) == 4
    first, last = results_of(before[-1]), results_of(script.requests[-1])
    assert {name: last[name] for name in first} == first
    assert first["table"] == {"kind": "tool-return", "rows": [{"a": 1}, None, 2.5]}
    assert (first["fails"], last["wait"]) == ("no luck", "waited")
    # Calls that no tool executes are closed with the text for the model.
    statuses = dict(AgentRunToolCall.objects.filter(run=run).values_list("call_id", "status"))
    assert statuses == {
        "table": "completed",
        "strict": "completed",
        "fails": "completed",
        "w1": "error",
        "strict2": "completed",
        "unknown": "error",
        "wait": "completed",
    }
    assert "valid integer" in AgentRunToolCall.objects.get(run=run, call_id="w1").output


def test_a_model_that_fails_is_replaced_also_after_a_replay(durable_site: DurableSite, person: Client) -> None:
    error = ModelHTTPError(429, "broken-1", {"why": "limit"})
    broken, script = Script(error, error), Script([call("wait")], "done")
    fallback = ModelFallback(script.model, fallback_on=(ModelHTTPError,))
    durability = AgentopsDurability[None](models={"second": script.model})
    agent = Agent(broken.model, name="support", capabilities=[fallback, durability])

    @agent.tool_plain(requires_approval=True)
    def wait() -> str:
        return "waited"

    with durable_site.serving(durable_function(agent)):
        run = durable_site.reaches(durable_site.start("support"), WAITING, PAUSED)
        assert run.status == WAITING, run.error_message
        [approval] = person.approvals(run_id=str(run.pk), state="pending")
        person.approve(run.pk, approval.call_id)
        durable_site.completes(run)

    assert [state for _, name, state in steps_of(run) if name == "model request"][:2] == ["failed", "done"]
    assert run.result == "done"


def test_an_error_of_the_model_pauses_the_run(durable_site: DurableSite, person: Client) -> None:
    script = Script(ModelHTTPError(503, "model-1", "overloaded"))
    agent = durable_agent(script)

    with durable_site.serving(durable_function(agent)):
        run = durable_site.reaches(durable_site.start("support"), PAUSED)
        script.replies = ("better",)
        person.resume(run.pk)
        run.refresh_from_db()
        successor = durable_site.completes(run.resumed_as)

    assert (run.error_type, "status_code: 503" in run.error_message) == ("ModelHTTPError", True)
    assert successor.result == "better"


def test_an_exception_of_a_tool_pauses_the_run(durable_site: DurableSite) -> None:
    agent = durable_agent(Script([call("fails")]))

    @agent.tool
    def fails(ctx: RunContext[None]) -> str:
        raise LookupError(f"no order for {ctx.tool_call_id}")

    with durable_site.serving(durable_function(agent)):
        run = durable_site.reaches(durable_site.start("support"), PAUSED)

    assert (run.error_type, run.error_message) == ("LookupError", "no order for fails")


def test_a_model_may_repeat_ids_of_calls(durable_site: DurableSite) -> None:
    script = Script([call("add", "x", n=1), call("add", "y", n=2)], [call("add", "x", n=3)], "done")
    agent = durable_agent(script)
    added: list[int] = []

    @agent.tool_plain
    async def add(n: int) -> int:
        added.append(n)
        return n

    with durable_site.serving(durable_function(agent)):
        run = durable_site.completes(durable_site.start("support"))

    assert added == [1, 2, 3]
    calls = AgentRunToolCall.objects.filter(run=run).order_by("step_number", "call_id")
    assert [row.call_id for row in calls] == ["x", "y", "x-2"]
