"""People and runs of agents of the SDK: approvals, messages, pauses, stops, unknown outcomes, budgets and forks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from agents import Agent, HostedMCPTool, function_tool
from openai.types.responses.response_output_item import McpApprovalRequest

from agentops.client import Client
from agentops.durable.openai_agents import durable_function, effect
from runs.models import Agent as AgentRow
from runs.models import AgentRunToolCall
from runs.statuses import RunStatus, ToolStatus
from tests.support.durable import DurableSite
from tests.support.sdk_model import ScriptedSdkModel, call, outputs, say, user_texts
from tests.support.timing import eventually

pytestmark = pytest.mark.django_db
WAITING, PAUSED, STOPPED = RunStatus.WAITING, RunStatus.PAUSED, RunStatus.STOPPED


@pytest.fixture
def person(durable_site: DurableSite) -> Iterator[Client]:
    with Client(durable_site.site.url, durable_site.site.key("read", "write")) as client:
        yield client


def refund_script(items: list[Any]) -> Any:
    done = outputs(items)
    if not done:
        return [call("c1", "refund", cents=500), call("c2", "look_up", order="17")]
    return say(f"{done['c1']}, {done['c2']}")


def refund_agent(executed: list[Any]) -> Agent[Any]:
    @function_tool(needs_approval=True)
    async def refund(cents: int) -> str:
        executed.append(cents)
        return f"{cents} cents refunded"

    @effect("read")
    @function_tool
    async def look_up(order: str) -> str:
        executed.append(order)
        return f"order {order} is sent"

    return Agent(name="desk", model=ScriptedSdkModel(refund_script), tools=[refund, look_up])


def test_a_person_approves_with_other_arguments(durable_site: DurableSite, person: Client) -> None:
    executed: list[Any] = []
    agent = refund_agent(executed)
    with durable_site.serving(durable_function(agent)):
        run = durable_site.reaches(durable_site.start("desk", "Refund."), WAITING, reason="approval")
        [approval] = person.approvals(run_id=str(run.pk), state="pending")
        assert (approval.tool_name, approval.arguments, executed) == ("refund", {"cents": 500}, ["17"])
        person.approve(run.pk, approval.call_id, arguments={"cents": 300})
        durable_site.completes(run)

    assert (run.result, executed) == ("300 cents refunded, order 17 is sent", ["17", 300])
    assert len(agent.model.inputs) == 2


def test_a_person_denies(durable_site: DurableSite, person: Client) -> None:
    executed: list[Any] = []
    with durable_site.serving(durable_function(refund_agent(executed))):
        run = durable_site.reaches(durable_site.start("desk", "Refund."), WAITING, reason="approval")
        [approval] = person.approvals(run_id=str(run.pk), state="pending")
        person.deny(run.pk, approval.call_id, "Too much.")
        durable_site.completes(run)

    assert executed == ["17"]
    assert "Too much." in run.result
    assert AgentRunToolCall.objects.get(run=run, call_id="c1").status == ToolStatus.DENIED


@pytest.mark.parametrize("approves", [True, False])
def test_a_person_decides_about_a_call_of_the_provider(
    durable_site: DurableSite, person: Client, approves: bool
) -> None:
    """Hosted MCP tools interrupt the SDK's run. It continues from its RunState with the decision."""
    config: Any = {
        "type": "mcp",
        "server_label": "shop",
        "server_url": "https://shop.example",
        "require_approval": "always",
    }

    def script(items: list[Any]) -> Any:
        responses = [item for item in items if item.get("type") == "mcp_approval_response"]
        if responses:
            return say(f"approved: {responses[0]['approve']}")
        return McpApprovalRequest(
            type="mcp_approval_request", id="r1", name="buy", arguments='{"item": 1}', server_label="shop"
        )

    agent = Agent(name="desk", model=ScriptedSdkModel(script), tools=[HostedMCPTool(tool_config=config)])
    with durable_site.serving(durable_function(agent)):
        run = durable_site.reaches(durable_site.start("desk", "Buy."), WAITING, reason="approval")
        [approval] = person.approvals(run_id=str(run.pk), state="pending")
        assert approval.tool_name == "buy"
        (person.approve if approves else person.deny)(run.pk, approval.call_id)
        durable_site.completes(run)

    assert run.result == f"approved: {approves}"
    assert len(agent.model.inputs) == 2


class SlowTool:
    """A tool that takes until it is released."""

    def __init__(self, kind: Any = "once") -> None:
        self.starts = 0
        self.released = asyncio.Event()

        @effect(kind)
        @function_tool
        async def work(item: str) -> str:
            self.starts += 1
            await self.released.wait()
            return f"worked on {item}"

        self.agent = Agent(name="worker", model=ScriptedSdkModel(self.script), tools=[work])

    @staticmethod
    def script(items: list[Any]) -> Any:
        done = outputs(items)
        if not done:
            return call("c1", "work", item="one")
        return say(f"{done['c1']}; {'; '.join(user_texts(items)[1:])}")

    @property
    def function(self) -> Any:
        return durable_function(self.agent)


def test_messages_become_user_input_of_the_next_model_call(durable_site: DurableSite, person: Client) -> None:
    slow = SlowTool()
    with durable_site.serving(slow.function) as process:
        run = durable_site.start("worker")
        durable_site.at_step(run, "work")
        person.send(run.pk, "And hurry.")
        process.call(slow.released.set)
        durable_site.completes(run)

    assert run.result == "worked on one; And hurry."


def test_a_message_at_the_end_is_a_further_turn(durable_site: DurableSite, person: Client) -> None:
    sent: list[Any] = []

    def script(items: list[Any]) -> Any:
        texts = user_texts(items)
        if not sent:
            sent.append(person.send(run_ids[0], "One more thing."))
        return say(f"answer to {texts[-1]}")

    run_ids: list[Any] = []
    agent = Agent(name="desk", model=ScriptedSdkModel(script))
    with durable_site.serving(durable_function(agent), concurrency=1):
        run = _start_known(durable_site, "desk", "First.", run_ids)
        durable_site.completes(run)

    assert run.result == "answer to One more thing."
    assert user_texts(agent.model.inputs[1]) == ["First.", "One more thing."]


def _start_known(site: DurableSite, agent: str, prompt: str, run_ids: list[Any]) -> Any:
    """Start a run whose model call needs its ID."""
    run = site.start(agent, prompt)
    run_ids.append(run.pk)
    return run


def test_a_paused_run_continues_with_a_message(durable_site: DurableSite, person: Client) -> None:
    slow = SlowTool()
    with durable_site.serving(slow.function) as process:
        run = durable_site.start("worker")
        durable_site.at_step(run, "work")
        person.pause(run.pk)
        process.call(slow.released.set)
        durable_site.reaches(run, PAUSED, reason="operator")
        person.resume(run.pk, "In French.")
        run.refresh_from_db()
        successor = durable_site.completes(run.resumed_as)

    assert (successor.result, slow.starts) == ("worked on one; In French.", 1)
    assert len(slow.agent.model.inputs) == 2


def test_a_cut_answer_pauses_and_a_message_continues_it(durable_site: DurableSite, person: Client) -> None:
    def script(items: list[Any]) -> Any:
        return say("high at noon.") if len(items) > 1 else say("The tide is", status="incomplete")

    agent = Agent(name="desk", model=ScriptedSdkModel(script))
    with durable_site.serving(durable_function(agent)):
        run = durable_site.reaches(durable_site.start("desk"), PAUSED, reason="answer_cut")
        person.resume(run.pk, "Go on.")
        run.refresh_from_db()
        successor = durable_site.completes(run.resumed_as)

    assert (run.result, successor.result) == ("", "high at noon.")


def test_a_stop_cancels_the_tool(durable_site: DurableSite, person: Client) -> None:
    slow = SlowTool()
    with durable_site.serving(slow.function):
        run = durable_site.start("worker")
        durable_site.at_step(run, "work")
        person.stop(run.pk)
        durable_site.reaches(run, STOPPED)

    assert (slow.starts, len(slow.agent.model.inputs)) == (1, 1)


def test_an_interrupted_tool_has_an_unknown_outcome(durable_site: DurableSite, person: Client) -> None:
    slow = SlowTool()
    with durable_site.serving(slow.function, grace_s=0.05):
        run = durable_site.start("worker")
        durable_site.at_step(run, "work")
        eventually(lambda: slow.starts == 1, why="the tool has started")
    with durable_site.serving(slow.function):
        durable_site.reaches(run, WAITING, reason="unknown_tool")
        [row] = AgentRunToolCall.objects.filter(run=run)
        person.resolve_call(run.pk, row.pk, "done", "worked by hand")
        durable_site.completes(run)

    assert (run.result, slow.starts) == ("worked by hand; ", 1)


def test_a_budget_pauses_before_the_next_model_call(durable_site: DurableSite) -> None:
    slow = SlowTool()
    with durable_site.serving(slow.function) as process:
        agents = AgentRow.objects.filter(project=durable_site.site.project, slug="worker")
        eventually(agents.exists, why="the agent is registered")
        row = agents.get()
        row.settings["budgets"] = {"tokens": 50}
        row.save(update_fields=["settings"])
        run = durable_site.start("worker")
        durable_site.at_step(run, "work")
        process.call(slow.released.set)
        durable_site.reaches(run, PAUSED, reason="budget")

    assert len(slow.agent.model.inputs) == 1


def test_a_fork_repeats_only_what_follows(durable_site: DurableSite, person: Client) -> None:
    slow = SlowTool("read")
    with durable_site.serving(slow.function) as process:
        run = durable_site.start("worker")
        durable_site.at_step(run, "work")
        process.call(slow.released.set)
        durable_site.completes(run)
        forked = type(run).objects.get(pk=person.fork(run.pk, 1, "In French.").id)
        durable_site.completes(forked)

    assert (forked.result, slow.starts) == ("worked on one; In French.", 1)
    assert len(slow.agent.model.inputs) == 3


def test_a_rule_asks_about_a_tool(durable_site: DurableSite, person: Client) -> None:
    slow = SlowTool()
    slow.released.set()
    with durable_site.serving(slow.function):
        durable_site.set_rules("worker", {"tools": "work", "action": "ask"})
        run = durable_site.reaches(durable_site.start("worker"), WAITING, reason="approval")
        assert slow.starts == 0
        [approval] = person.approvals(run_id=str(run.pk), state="pending")
        person.approve(run.pk, approval.call_id)
        durable_site.completes(run)

    assert slow.starts == 1
