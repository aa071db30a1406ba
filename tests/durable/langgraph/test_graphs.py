"""Graphs as runs: interrupts, sub-graphs, parallel nodes, breakpoints, steps in nodes, and changed states."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import RetryPolicy, interrupt

from agentops.client import Client
from agentops.durable.langgraph import AgentopsSaver, current_run, durable_function, rows, threads
from runs.models import AgentRun, AgentRunToolCall, RemoteStep
from runs.statuses import RunStatus
from tests.support.durable import DurableSite, steps_of
from tests.support.langchain_models import ScriptedChat, answer

WAITING = RunStatus.WAITING


class State(TypedDict, total=False):
    topic: str
    notes: Annotated[list[str], operator.add]


def reply(person: Client, site: DurableSite, run: AgentRun, text: str) -> None:
    site.reaches(run, WAITING, reason="input")
    [question] = person.approvals(run_id=str(run.pk), kind="question", state="pending")
    person.reply(run.pk, text)
    site.is_decided(question.call_id)


def test_interrupts_are_questions_and_approvals(durable_site: DurableSite, person: Client) -> None:
    begun: list[str] = []

    def ask(state: State) -> State:
        begun.append("ask")
        name = interrupt("What is your name?")
        # The same question again, with another answer.
        again = interrupt("What is your name?")
        return {"notes": [f"{name} {again}"]}

    def charge(state: State) -> State:
        decision = interrupt({"approval": "charge", "payload": {"cents": 5}})
        return {"notes": [f"{decision['approved']} {decision['payload']['cents']}"]}

    builder = StateGraph(State)
    builder.add_node("ask", ask)
    builder.add_node("charge", charge)
    builder.add_edge(START, "ask")
    builder.add_edge("ask", "charge")
    graph = builder.compile(checkpointer=AgentopsSaver(), name="asks")

    with durable_site.serving(durable_function(graph, output=lambda state: state["notes"])):
        run = durable_site.start("asks", '{"topic": "x"}')
        reply(person, durable_site, run, "Ada")
        reply(person, durable_site, run, "Byron")
        durable_site.reaches(run, WAITING, reason="approval")
        [approval] = person.approvals(run_id=str(run.pk), kind="approval", state="pending")
        assert approval.tool_name == "charge"
        person.approve(run.pk, approval.call_id, arguments={"cents": 7})
        durable_site.completes(run)

    assert run.result == '[\n  "Ada Byron",\n  "True 7"\n]'
    assert begun == ["ask"] * 3


def test_parallel_interrupts_wait_one_after_the_other(durable_site: DurableSite, person: Client) -> None:
    def node(name: str) -> Any:
        return lambda state: {"notes": [f"{name}={interrupt(name)}"]}

    builder = StateGraph(State)
    for name in ("a", "b"):
        builder.add_node(name, node(name))
        builder.add_edge(START, name)
    graph = builder.compile(checkpointer=AgentopsSaver(), name="parallel")

    with durable_site.serving(durable_function(graph)):
        run = durable_site.start("parallel", '{"topic": "x"}')
        for _ in range(2):
            durable_site.reaches(run, WAITING, reason="input")
            [question] = person.approvals(run_id=str(run.pk), kind="question", state="pending")
            person.reply(run.pk, question.arguments["question"].upper())
            durable_site.is_decided(question.call_id)
        durable_site.completes(run)

    assert '"a=A"' in run.result
    assert '"b=B"' in run.result


def test_steps_in_nodes_are_read_back_when_a_node_is_executed_again(durable_site: DurableSite, person: Client) -> None:
    counts: dict[str, int] = {}

    def count(name: str) -> int:
        counts[name] = counts.get(name, 0) + 1
        return counts[name]

    async def gather(state: State) -> State:
        run = current_run()
        first = await asyncio.gather(*(run.step(f"part {number}", count, f"part {number}") for number in range(3)))
        answered = interrupt("Continue?")
        last = await run.step("last", count, "last", effect="read")
        return {"notes": [f"{first} {answered} {last}"]}

    def in_thread(state: State) -> State:
        return {"notes": [str(current_run().step("thread", count, "thread"))]}

    builder = StateGraph(State)
    builder.add_sequence([("gather", gather), ("in_thread", in_thread)])
    builder.add_edge(START, "gather")
    graph = builder.compile(checkpointer=AgentopsSaver(), name="steps")

    with durable_site.serving(durable_function(graph)):
        run = durable_site.start("steps", '{"topic": "x"}')
        reply(person, durable_site, run, "yes")
        durable_site.completes(run)

    assert "[1, 1, 1] yes 1" in run.result
    assert counts == {"part 0": 1, "part 1": 1, "part 2": 1, "last": 1, "thread": 1}


def test_a_sub_graph_is_part_of_the_run(durable_site: DurableSite, person: Client) -> None:
    model = ScriptedChat(script=lambda messages: answer(f"about {messages[-1].text}"))

    def write(state: MessagesState) -> Any:
        return {"messages": [model.invoke(state["messages"])]}

    def confirm(state: MessagesState) -> Any:
        return {"messages": [AIMessage(f"confirmed: {interrupt('Good?')}")]}

    inner = StateGraph(MessagesState)
    inner.add_sequence([("write", write), ("confirm", confirm)])
    inner.add_edge(START, "write")
    outer = StateGraph(MessagesState)
    outer.add_node("desk", inner.compile(name="inner"))
    outer.add_node("again", write)
    outer.add_edge(START, "desk")
    outer.add_edge("desk", "again")
    graph = outer.compile(checkpointer=AgentopsSaver(), name="outer")

    with durable_site.serving(durable_function(graph)):
        run = durable_site.start("outer", "tides")
        reply(person, durable_site, run, "yes")
        durable_site.completes(run)

    assert run.result == "about confirmed: yes"
    assert [[str(message.text) for message in request] for request in model.requests] == [
        ["tides"],
        ["tides", "about tides", "confirmed: yes"],
    ]
    assert RemoteStep.objects.filter(run=run, kind="model").count() == 2


def test_an_agent_that_is_a_tool_has_its_own_steps(durable_site: DurableSite) -> None:
    inner_model = ScriptedChat(script=lambda messages: answer(f"facts on {messages[-1].text}"))
    researcher = create_agent(inner_model, [], name="researcher")

    @tool(extras={"agentops": {"step": False}})
    async def research(topic: str) -> str:
        """Research a topic."""
        state = await researcher.ainvoke({"messages": [{"role": "user", "content": topic}]})
        return str(state["messages"][-1].text)

    def script(messages: Sequence[BaseMessage]) -> AIMessage:
        return (messages[-1].type == "tool" and answer(f"So: {messages[-1].text}")) or answer(
            "", ("research", {"topic": "tides"}, "c1")
        )

    lead = create_agent(ScriptedChat(script=script), [research], name="lead", checkpointer=AgentopsSaver())
    with durable_site.serving(durable_function(lead)):
        run = durable_site.completes(durable_site.start("lead"))

    assert run.result == "So: facts on tides"
    steps = RemoteStep.objects.filter(run=run).exclude(kind="messages").order_by("position")
    assert list(steps.values_list("kind", "name")) == [
        ("model", "claude-sonnet-4-5"),
        ("model", "claude-sonnet-4-5"),
        ("tool", "research"),
        ("model", "claude-sonnet-4-5"),
    ]
    call = AgentRunToolCall.objects.get(run=run, tool_name="research")
    assert (call.output, call.effect, call.status) == ("facts on tides", "idempotent", "completed")


def test_a_node_is_tried_again_without_repeating_its_steps(durable_site: DurableSite) -> None:
    attempts: list[str] = []
    model = ScriptedChat(script=lambda messages: answer("fine"))

    async def flaky(state: State) -> State:
        text = (await model.ainvoke(state["topic"])).text
        attempts.append(str(text))
        if len(attempts) < 3:
            raise ConnectionError("again")
        return {"notes": [str(text)]}

    builder = StateGraph(State)
    builder.add_node("flaky", flaky, retry_policy=RetryPolicy(initial_interval=0.01, jitter=False))
    builder.add_edge(START, "flaky")
    with durable_site.serving(durable_function(builder.compile(checkpointer=AgentopsSaver(), name="flaky"))):
        durable_site.completes(durable_site.start("flaky", '{"topic": "x"}'))

    assert attempts == ["fine"] * 3
    assert len(model.requests) == 1


def test_a_breakpoint_is_an_approval(durable_site: DurableSite, person: Client) -> None:
    builder = StateGraph(State)
    builder.add_sequence([("plan", lambda state: {"notes": ["planned"]}), ("act", lambda state: {"notes": ["acted"]})])
    builder.add_edge(START, "plan")
    graph = builder.compile(checkpointer=AgentopsSaver(), interrupt_before=["act"], name="careful")

    with durable_site.serving(durable_function(graph)):
        for decision, ends_with in ((person.approve, "acted"), (person.deny, "planned")):
            run = durable_site.start("careful", '{"topic": "x"}')
            durable_site.reaches(run, WAITING, reason="approval")
            [approval] = person.approvals(run_id=str(run.pk), state="pending")
            assert approval.tool_name == "continue with act"
            decision(run.pk, approval.call_id)
            durable_site.completes(run)
            assert ends_with in run.result.splitlines()[-3]


def test_the_functional_api(durable_site: DurableSite, person: Client) -> None:
    written: list[str] = []

    @task
    def write(topic: str) -> str:
        written.append(topic)
        return f"an essay on {topic}"

    @entrypoint(checkpointer=AgentopsSaver())
    def essay(topic: str) -> str:
        text = write(topic).result()
        return f"{text}: {interrupt('Publish?')}"

    with durable_site.serving(durable_function(essay, name="essay", input=lambda prompt: prompt)):
        run = durable_site.start("essay", "cats")
        reply(person, durable_site, run, "yes")
        durable_site.completes(run)

    assert (run.result, written) == ("an essay on cats: yes", ["cats"])


@pytest.mark.parametrize("size", [threads.REQUEST_SIZE, 10], ids=["one request", "several requests"])
def test_a_state_that_is_changed_from_outside_forks_the_run(
    durable_site: DurableSite, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    for module, name in ((threads, "REQUEST_SIZE"), (rows, "OPERATION_SIZE")):
        monkeypatch.setattr(module, name, size)
    model = ScriptedChat(script=lambda messages: answer(f"{messages[-1].text}!"))

    async def shout(state: MessagesState) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_sequence(
        [("shout", shout), ("whisper", lambda state: {"messages": [AIMessage(f"({state['messages'][-1].text})")]})]
    )
    builder.add_edge(START, "shout")
    saver = AgentopsSaver(url=durable_site.site.url, key=durable_site.site.key("work"))
    graph = builder.compile(checkpointer=saver, name="shouts")

    with durable_site.serving(durable_function(graph)):
        run = durable_site.completes(durable_site.start("shouts", "hello"))
        of_run = {"configurable": {"thread_id": str(run.pk)}}
        history = list(graph.get_state_history(of_run))
        assert [state.next for state in history] == [(), ("whisper",), ("shout",), ("__start__",)]
        assert graph.get_state(of_run).values["messages"][-1].text == "(hello!)"
        changed = graph.update_state(history[1].config, {"messages": [AIMessage("HELLO")]}, as_node="shout")
        fork = AgentRun.objects.get(pk=changed["configurable"]["thread_id"])
        durable_site.completes(fork)
    saver.close()

    assert (run.result, fork.result) == ("(hello!)", "(HELLO)")
    assert (fork.forked_from_id, len(model.requests)) == (run.pk, 1)
    assert AgentRun.objects.filter(forked_from=run).count() == 1
    assert {name for _, name, _ in steps_of(fork)} == {"messages"}
