"""What people do to runs of durable agents: they approve, answer, send messages and resolve events."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent, DeferredToolRequests, FunctionToolset, RunContext
from pydantic_ai.capabilities import RequestInput
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, UserError
from pydantic_ai.messages import ModelResponse, TextPart, ToolReturnPart, UserPromptPart
from pydantic_ai.tools import DeferredToolResults, ToolDefinition
from pydantic_ai.toolsets import ExternalToolset

from agentops.client import Client
from agentops.durable.pydantic_ai import AgentopsDurability, durable_function, fail_event, resolve_event
from runs.models import AgentRun, AgentRunToolCall
from runs.statuses import RunStatus
from tests.support.durable import DurableSite
from tests.support.pydantic_agents import Script, call, durable_agent, results_of
from tests.support.timing import eventually

WAITING, PAUSED = RunStatus.WAITING, RunStatus.PAUSED
SLOW = pytest.mark.slow


def test_a_tool_that_requires_approval(durable_site: DurableSite, person: Client) -> None:
    """A person changes the arguments of one call, and denies another. The requests are about the model's calls."""
    script = Script([call("refund", "c1", cents=500), call("refund", "c2", cents=900)], "done")
    agent = durable_agent(script)
    refunded: list[tuple[int, bool]] = []

    @agent.tool(requires_approval=True)
    def refund(ctx: RunContext[None], cents: int) -> str:
        refunded.append((cents, ctx.tool_call_approved))
        return f"{cents} refunded"

    with durable_site.serving(durable_function(agent)):
        run = durable_site.start("support")
        for decision in ("change", "deny"):
            durable_site.reaches(run, WAITING, reason="approval")
            [approval] = person.approvals(run_id=str(run.pk), state="pending")
            if decision == "change":
                person.approve(run.pk, approval.call_id, arguments={"cents": 300})
            else:
                person.deny(run.pk, approval.call_id, "enough")
            durable_site.is_decided(approval.call_id)
        durable_site.completes(run)

    assert refunded == [(300, True)]
    returns = [part for part in script.requests[-1][-1].parts if isinstance(part, ToolReturnPart)]
    assert [(part.outcome, part.content) for part in returns] == [
        ("success", "300 refunded"),
        ("denied", returns[1].content),
    ]
    assert "enough" in returns[1].content
    assert list(AgentRunToolCall.objects.filter(run=run).order_by("call_id").values_list("call_id", "status")) == [
        ("c1", "completed"),
        ("c2", "denied"),
    ]


@pytest.mark.parametrize("approves", [True, pytest.param(False, marks=SLOW)])
def test_a_tool_that_asks_for_approval_itself(durable_site: DurableSite, person: Client, approves: bool) -> None:
    script = Script([call("refund", cents=500)], "done")
    agent = durable_agent(script)
    calls: list[bool] = []

    @agent.tool
    def refund(ctx: RunContext[None], cents: int) -> str:
        calls.append(ctx.tool_call_approved)
        if cents > 100 and not ctx.tool_call_approved:
            raise ApprovalRequired(metadata={"limit": 100})
        return "refunded"

    with durable_site.serving(durable_function(agent)):
        run = durable_site.reaches(durable_site.start("support"), WAITING, reason="approval")
        [approval] = person.approvals(run_id=str(run.pk), state="pending")
        assert (approval.tool_name, approval.arguments) == ("refund", {"cents": 500})
        if approves:
            person.approve(run.pk, approval.call_id)
        else:
            person.deny(run.pk, approval.call_id, "no")
        durable_site.completes(run)

    assert calls == ([False, True] if approves else [False])
    assert results_of(script.requests[-1]) == {"refund": "refunded" if approves else "no"}


@SLOW
def test_a_toolset_that_requires_approval(durable_site: DurableSite, person: Client) -> None:
    script = Script([call("pay")], "done")
    agent = durable_agent(script, toolsets=[payments().approval_required()])

    with durable_site.serving(durable_function(agent)):
        run = durable_site.reaches(durable_site.start("support"), WAITING, reason="approval")
        [approval] = person.approvals(run_id=str(run.pk), state="pending")
        person.approve(run.pk, approval.call_id)
        durable_site.completes(run)

    assert results_of(script.requests[-1]) == {"pay": "paid"}


def payments() -> FunctionToolset[Any]:
    toolset = FunctionToolset(id="payments")

    @toolset.tool_plain
    def pay() -> str:
        return "paid"

    return toolset


def test_calls_that_are_answered_from_outside(durable_site: DurableSite, person: Client) -> None:
    """An external tool, and a tool that asks a question."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    external = ExternalToolset([ToolDefinition(name="measure", parameters_json_schema=schema)], id="outside")
    script = Script(
        [call("measure", city="Bern")], [call("ask_user", question="Which unit?", choices=["C", "F"])], "done"
    )
    agent = durable_agent(script, toolsets=[external], output_type=[str, DeferredToolRequests])

    @agent.tool_plain
    def ask_user(question: str, choices: list[str]) -> str:
        raise CallDeferred(kind="question")

    with durable_site.serving(durable_function(agent)):
        run = durable_site.start("support")
        for question, reply in (('What is the result of measure({"city": "Bern"})?', "21"), ("Which unit?", "C")):
            durable_site.reaches(run, WAITING, reason="input")
            [row] = person.approvals(run_id=str(run.pk), kind="question", state="pending")
            assert row.arguments["question"] == question
            person.reply(run.pk, reply)
            durable_site.is_decided(row.call_id)
        durable_site.completes(run)

    assert row.arguments["choices"] == ["C", "F"]
    assert results_of(script.requests[-1]) == {"measure": "21", "ask_user": "C"}


@pytest.mark.parametrize(
    "outcome", ["resolved", *(pytest.param(name, marks=SLOW) for name in ("failed", "late", "at once"))]
)
def test_an_event_from_outside(durable_site: DurableSite, person: Client, outcome: str) -> None:
    """The library's own request for input waits for a signal; its function is called once."""
    tokens: list[str] = []

    def ask(ctx: RunContext[None], requests: DeferredToolRequests, token: str) -> DeferredToolResults | None:
        tokens.append(token)
        return requests.build_results(approve_all=True) if outcome == "at once" else None

    script = Script([call("pay", "c1")], "done")
    request = RequestInput(ask=ask, timeout=timedelta(hours=1))
    agent = durable_agent(script, capabilities=[request])

    @agent.tool_plain(requires_approval=True)
    def pay() -> str:
        return "paid"

    with durable_site.serving(durable_function(agent)):
        run = durable_site.start("support")
        if outcome != "at once":
            durable_site.reaches(run, WAITING, reason="signal")
        if outcome == "resolved":
            resolve_event(person, tokens[0], {"approvals": {"c1": True}})
        elif outcome == "failed":
            fail_event(person, tokens[0], "nobody is there")
        elif outcome == "late":
            durable_site.pass_deadline(run)
        durable_site.completes(run)

    assert len(tokens) == 1
    result = results_of(script.requests[-1])["pay"]
    if outcome in ("resolved", "at once"):
        assert result == "paid"
    else:
        assert ("nobody is there" if outcome == "failed" else "within 1:00:00") in result


def user_texts(messages: list[Any]) -> list[Any]:
    return [part.content for message in messages for part in message.parts if isinstance(part, UserPromptPart)]


def test_messages_are_user_turns_of_the_next_request(durable_site: DurableSite, person: Client) -> None:
    """Messages that arrive before a request, and at the end; they are read back from the journal."""
    script = Script([call("work")], [call("wait")], "first", "second")
    agent = durable_agent(script)
    is_sent = asyncio.Event()

    @agent.tool_plain
    async def work() -> str:
        await asyncio.wait_for(is_sent.wait(), 60)
        return "worked"

    @agent.tool_plain(requires_approval=True)
    def wait() -> str:
        return "waited"

    with durable_site.serving(durable_function(agent)) as process:
        run = durable_site.start("support")
        durable_site.at_step(run, "work")
        person.send(run.pk, "Be short.")
        process.call(is_sent.set)
        durable_site.reaches(run, WAITING)
        [approval] = person.approvals(run_id=str(run.pk), state="pending")
        person.approve(run.pk, approval.call_id)
        durable_site.completes(run)

    assert [user_texts(messages) for messages in script.requests[:3]] == [
        ["Go."],
        ["Go.", "Be short."],
        ["Go.", "Be short."],
    ]


def test_a_conversation_is_continued_by_a_fork(durable_site: DurableSite, person: Client) -> None:
    script = Script("first", "second", "third")
    agent = durable_agent(script)

    with durable_site.serving(durable_function(agent)):
        run = durable_site.completes(durable_site.start("support"))
        for number, (text, result) in enumerate((("Again.", "second"), ("And again.", "third")), start=1):
            fork = person.fork(run.pk, number, text)
            run = durable_site.completes(AgentRun.objects.get(pk=fork.id))
            assert run.result == result

    assert [user_texts(messages) for messages in script.requests] == [
        ["Go."],
        ["Go.", "Again."],
        ["Go.", "Again.", "And again."],
    ]


def test_a_paused_run_is_resumed_with_a_message(durable_site: DurableSite, person: Client) -> None:
    """The message reaches the request that the pause has interrupted."""
    script = Script([call("work")], "done")
    agent = durable_agent(script)
    started, worked = asyncio.Event(), []

    @agent.tool_plain
    async def work() -> str:
        worked.append(1)
        await asyncio.wait_for(started.wait(), 60)
        return "worked"

    with durable_site.serving(durable_function(agent)) as process:
        run = durable_site.start("support")
        durable_site.at_step(run, "work")
        person.pause(run.pk)
        process.call(started.set)
        durable_site.reaches(run, PAUSED, reason="operator")
        person.resume(run.pk, "Hurry.")
        run.refresh_from_db()
        successor: AgentRun = durable_site.completes(run.resumed_as)

    assert (successor.result, worked) == ("done", [1])
    assert user_texts(script.requests[-1]) == ["Go.", "Hurry."]


def test_a_cut_answer_pauses_and_a_message_continues_it(durable_site: DurableSite, person: Client) -> None:
    cut = ModelResponse([TextPart("The tide is")], finish_reason="length")
    script = Script(cut, "high at noon.")
    with durable_site.serving(durable_function(durable_agent(script))):
        run = durable_site.reaches(durable_site.start("support"), PAUSED, reason="answer_cut")
        person.resume(run.pk, "Go on.")
        run.refresh_from_db()
        successor: AgentRun = durable_site.completes(run.resumed_as)

    assert (run.result, successor.result) == ("", "high at noon.")
    assert user_texts(script.requests[-1]) == ["Go.", "Go on."]


def test_a_stop(durable_site: DurableSite, person: Client) -> None:
    script = Script([call("work")], "never")
    agent = durable_agent(script)
    ends: list[str] = []

    @agent.tool_plain
    async def work() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("cancelled")
        return "never"

    with durable_site.serving(durable_function(agent)):
        run = durable_site.start("support")
        durable_site.at_step(run, "work")
        person.stop(run.pk)
        durable_site.reaches(run, RunStatus.STOPPED)
        eventually(lambda: ends == ["cancelled"], why="the tool is cancelled")

    assert len(script.requests) == 1


def test_a_budget_pauses_before_the_next_request(durable_site: DurableSite) -> None:
    script = Script([call("work")], "never")
    agent = durable_agent(script)
    agent.tool_plain(name="work")(lambda: "worked")
    function = durable_function(agent, settings={"budgets": {"tokens": 10}})

    with durable_site.serving(function):
        run = durable_site.reaches(durable_site.start("support"), PAUSED)

    assert (run.status_reason, len(script.requests)) == ("budget", 1)


def test_a_fork_continues_from_its_step(durable_site: DurableSite, person: Client) -> None:
    script = Script([call("work")], "done")
    agent = durable_agent(script)
    worked: list[int] = []

    @agent.tool_plain
    def work() -> str:
        worked.append(1)
        return "worked"

    with durable_site.serving(durable_function(agent)):
        run = durable_site.completes(durable_site.start("support"))
        fork = person.fork(run.pk, 1, "Differently.")
        forked = durable_site.completes(AgentRun.objects.get(pk=fork.id))

    assert (forked.result, worked, len(script.requests)) == ("done", [1], 3)
    assert user_texts(script.requests[-1]) == ["Go.", "Differently."]


def test_the_capability_needs_a_name() -> None:
    with pytest.raises(UserError, match="needs to have a unique `name`"):
        Agent(Script("x").model, capabilities=[AgentopsDurability()])
