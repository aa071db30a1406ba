"""An agent of LangChain on LangGraph: tools with approvals and parallel calls, interrupts, and waits in tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.types import interrupt

from agentops.durable.langgraph import AgentopsSaver, current_run, durable_function
from tests.chaos.programs import interface
from tests.chaos.programs.interface import ASK, CHECK_VISA, CONFIRM, DEPARTURE, MODEL, REST, TOOLS, TOOLS_OF, TRIP, VISA

WAITS = interface.WAITS_OF["langgraph"]
#: What these tools do are steps themselves, so the tools need no steps.
NO_STEP = {"agentops": {"step": False}}


class TripModel(BaseChatModel):
    """Answers by the script."""

    model_name: str = MODEL

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> TripModel:
        return self

    def _generate(self, *args: Any, **options: Any) -> ChatResult:
        raise AssertionError("the graph is executed asynchronously")

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        prompt = next(message for message in messages if message.type == "human")
        results = {str(message.name): str(message.text) for message in messages if message.type == "tool"}
        number = 1 + sum(message.type == "ai" for message in messages)
        turn = await interface.answer(interface.trip_of(str(prompt.text)), number, results, WAITS)
        calls = [{"name": a.name, "args": dict(a.arguments), "id": a.call_id(number)} for a in turn.calls]
        usage = {"input_tokens": 10 * number, "output_tokens": 5, "total_tokens": 10 * number + 5}
        message = AIMessage(turn.text, tool_calls=calls, usage_metadata=usage, response_metadata={"model_name": MODEL})
        return ChatResult(generations=[ChatGeneration(message=message)])


@tool(ASK, extras=NO_STEP)
async def ask_traveller(question: str) -> str:
    """Ask the traveller."""
    return str(interrupt({"question": question, "choices": interface.CHOICES}))


@tool(CONFIRM, extras=NO_STEP)
async def confirm() -> str:
    """Ask a person to confirm the trip."""
    return "yes" if interrupt({"approval": CONFIRM, "payload": {}})["approved"] else "no"


@tool(CHECK_VISA, extras=NO_STEP)
async def check_visa(prompt: str) -> str:
    """Check a visa in a child run."""
    return str((await current_run().child(VISA, prompt)).result)


@tool(REST, extras=NO_STEP)
async def rest() -> str:
    """Rest."""
    await current_run().sleep(interface.REST_S)
    return "rested"


@tool(DEPARTURE, extras=NO_STEP)
async def await_departure() -> str:
    """Wait for the departure."""
    return json.dumps(await current_run().wait_for(interface.SIGNAL))


def tools_of(agent: str) -> list[BaseTool]:
    return [
        StructuredTool.from_function(
            coroutine=TOOLS[name].function,
            name=name,
            description=name,
            metadata={"agentops": {"effect": TOOLS[name].effect, "approval": TOOLS[name].needs_approval}},
        )
        for name in TOOLS_OF[agent]
    ]


def agent_of(name: str, *waits: BaseTool) -> Any:
    agent = create_agent(TripModel(), [*tools_of(name), *waits], name=name, checkpointer=AgentopsSaver())
    return durable_function(agent)


def served() -> list[Any]:
    return [agent_of(TRIP, ask_traveller, confirm, check_visa, rest, await_departure), agent_of(VISA)]
