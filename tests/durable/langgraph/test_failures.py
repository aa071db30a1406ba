"""Failed models and tools raise the same exceptions in a node that is executed again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import BaseMessage
from langchain_core.tools import ToolException, tool
from langgraph.graph import START, MessagesState, StateGraph

from agentops.client import Client
from agentops.durable.langgraph import AgentopsSaver, current_run, durable_function
from runs.models import AgentRunToolCall
from runs.statuses import RunStatus
from tests.support.durable import DurableSite
from tests.support.langchain_models import ScriptedChat, answer


class Overdrawn(ValueError):
    """An exception of the program itself, whose class the journal does not have."""


ERRORS = {
    "built-in": ValueError("no number"),
    "of LangChain": ToolException("closed"),
    "of the program": Overdrawn("no money"),
}


@tool(extras={"agentops": {"effect": "read"}})
async def fail(kind: str) -> str:
    """Raise an exception."""
    raise ERRORS[kind]


def test_exceptions_have_the_same_classes_after_a_replay(durable_site: DurableSite, person: Client) -> None:
    executions: list[list[str]] = []

    def script(messages: Sequence[BaseMessage]) -> Any:
        raise Overdrawn("no tokens")

    async def caught(call: Any) -> str:
        try:
            await call
        except Exception as error:
            return type(error).__name__
        return ""

    async def publish() -> None:
        if len(executions) == 1:
            raise ConnectionError("later")

    async def work(state: MessagesState) -> Any:
        names = [await caught(fail.ainvoke({"kind": kind})) for kind in ERRORS]
        # Refused by the schema of the tool, so it is not executed.
        names.append(await caught(fail.ainvoke({"other": 1})))
        names.append(await caught(ScriptedChat(script=script).ainvoke("Hello")))
        executions.append(names)
        await current_run().step("publish", publish, effect="read")
        return {"messages": ["published"]}

    builder = StateGraph(MessagesState)
    builder.add_node("work", work)
    builder.add_edge(START, "work")
    with durable_site.serving(durable_function(builder.compile(checkpointer=AgentopsSaver(), name="fails"))):
        run = durable_site.reaches(durable_site.start("fails"), RunStatus.PAUSED)
        person.resume(run.pk)
        run.refresh_from_db()
        durable_site.completes(run.resumed_as)

    assert executions == [["ValueError", "ToolException", "StepFailed", "ValidationError", "StepFailed"]] * 2


def test_the_model_is_told_about_arguments_that_a_tool_refuses(durable_site: DurableSite) -> None:
    @tool(extras={"agentops": {"effect": "read"}})
    def look_up(order: int) -> str:
        """Look up an order."""
        return f"order {order} is late"

    def script(messages: Sequence[BaseMessage]) -> Any:
        results = [message for message in messages if message.type == "tool"]
        if len(results) == 2:
            return answer(str(results[-1].text))
        return answer("", ("look_up", {"order": 17 if results else "seventeen"}, f"c{len(results)}"))

    desk = create_agent(ScriptedChat(script=script), [look_up], name="desk", checkpointer=AgentopsSaver())
    with durable_site.serving(durable_function(desk)):
        run = durable_site.completes(durable_site.start("desk"))

    assert run.result == "order 17 is late"
    calls = {call.call_id: call for call in AgentRunToolCall.objects.filter(run=run)}
    assert [calls[call_id].status for call_id in ("c0", "c1")] == ["error", "completed"]
    assert "valid integer" in calls["c0"].output
