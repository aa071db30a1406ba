"""Models and tools in nodes: what runs at the same time keeps its own stored value, and nothing blocks the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langchain_core.tools import StructuredTool, tool
from langgraph.graph import START, MessagesState, StateGraph

from agentops.client import Client
from agentops.durable.langgraph import AgentopsSaver, current_run, durable_function
from runs.models import AgentRun
from runs.statuses import RunStatus
from tests.support.durable import DurableSite
from tests.support.langchain_models import ScriptedChat, answer

PAUSED = RunStatus.PAUSED


def graph(name: str, *nodes: Callable[..., Any]) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_sequence([(node.__name__, node) for node in nodes])
    builder.add_edge(START, nodes[0].__name__)
    return durable_function(builder.compile(checkpointer=AgentopsSaver(), name=name))


class Problem:
    """A step that fails the first time, so that the run is paused and its node is executed again."""

    def __init__(self) -> None:
        self._calls = 0

    def __call__(self) -> None:
        self._calls += 1
        if self._calls == 1:
            raise ConnectionError("later")


def resumed(site: DurableSite, person: Client, agent: str) -> AgentRun:
    """Start a run that pauses, resume it, and return the run that has completed."""
    run = site.reaches(site.start(agent), PAUSED)
    assert run.error_type == "ConnectionError", run.error_message
    person.resume(run.pk)
    run.refresh_from_db()
    assert run.resumed_as is not None
    return site.completes(run.resumed_as)


def test_models_that_are_called_at_the_same_time_keep_their_answers(durable_site: DurableSite, person: Client) -> None:
    def script(messages: Sequence[BaseMessage]) -> Any:
        return answer("a title" if messages[-1].text == "Give a title" else "a text")

    model, problem = ScriptedChat(script=script), Problem()

    async def plan(state: MessagesState) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    async def write(state: MessagesState) -> Any:
        # Only the first request ends with a message of the state, so only it may wait for messages of people.
        text, title = await asyncio.gather(model.ainvoke(state["messages"]), model.ainvoke("Give a title"))
        await current_run().step("publish", problem, effect="read")
        return {"messages": [f"{title.text}: {text.text}"]}

    with durable_site.serving(graph("writes", plan, write)):
        run = resumed(durable_site, person, "writes")

    assert (run.result, len(model.requests)) == ("a title: a text", 3)


def test_synchronous_tools_that_are_called_at_the_same_time_keep_their_results(
    durable_site: DurableSite, person: Client
) -> None:
    problem, has_ended = Problem(), threading.Event()

    def shout(word: str) -> str:
        """Return a word in capitals."""
        if word == "two":
            has_ended.set()
        return word.upper()

    class Late(StructuredTool):
        """In the first execution, its call with the word "one" reaches its thread after the other call."""

        def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002
            if input == {"word": "one"}:
                assert has_ended.wait(60)
            return super().invoke(input, config, **kwargs)

    late = Late.from_function(shout)

    async def write(state: MessagesState) -> Any:
        words = await asyncio.gather(late.ainvoke({"word": "one"}), late.ainvoke({"word": "two"}))
        await current_run().step("publish", problem, effect="read")
        return {"messages": [" ".join(words)]}

    with durable_site.serving(graph("shouts", write)):
        run = resumed(durable_site, person, "shouts")

    assert run.result == "ONE TWO"


@pytest.mark.parametrize("is_step", [True, False])
def test_a_synchronous_call_of_a_tool_in_an_asynchronous_node_is_refused(
    durable_site: DurableSite, is_step: bool
) -> None:
    done: list[str] = []

    @tool(extras={"agentops": {"step": is_step}})
    def look_up() -> str:
        """Look something up."""
        done.append("looked up")
        return "late"

    async def write(state: MessagesState) -> Any:
        return {"messages": [look_up.invoke({"type": "tool_call", "name": "look_up", "args": {}, "id": "c1"})]}

    with durable_site.serving(graph("blocks", write)):
        run = durable_site.reaches(durable_site.start("blocks"), PAUSED)

    assert (run.error_type, "use the asynchronous method" in run.error_message) == ("RuntimeError", True)
    assert done == []


def test_a_pause_does_not_wait_longer_for_a_synchronous_tool_than_the_grace_period(
    durable_site: DurableSite, person: Client
) -> None:
    """The tool continues in its thread. Its result is not stored, so a person decides about it."""
    entered, finish = threading.Event(), threading.Event()

    @tool
    def transfer() -> str:
        """Take long."""
        entered.set()
        finish.wait(60)
        return "transferred"

    async def work(state: MessagesState) -> Any:
        return {"messages": [await transfer.ainvoke({})]}

    with durable_site.serving(graph("pays", work), grace_s=0.05):
        run = durable_site.start("pays")
        assert entered.wait(60)
        person.pause(run.pk)
        durable_site.reaches(run, PAUSED, reason="operator")
        finish.set()
        person.resume(run.pk)
        run.refresh_from_db()
        successor = durable_site.reaches(run.resumed_as, RunStatus.WAITING)
        [request] = person.approvals(run_id=str(successor.pk), state="pending")
        person.resolve_call(successor.pk, request.call_id, "done", "transferred")
        durable_site.completes(successor)

    assert successor.result == "transferred"
