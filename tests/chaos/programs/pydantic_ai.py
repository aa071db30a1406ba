"""An agent of pydantic-ai: tools with approvals and parallel calls, a deferred call as a question, and a child run."""

from __future__ import annotations

from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.tools import Tool, ToolDefinition
from pydantic_ai.toolsets import ExternalToolset

from agentops.durable.pydantic_ai import AgentopsDurability, durable_function
from tests.chaos.programs import interface
from tests.chaos.programs.interface import ASK, MODEL, TOOLS, TOOLS_OF, TRIP, VISA

WAITS = interface.WAITS_OF["pydantic_ai"]


async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    parts = [part for message in messages for part in message.parts]
    [prompt] = [part.content for part in parts if isinstance(part, UserPromptPart)]
    results = {part.tool_name: str(part.content) for part in parts if isinstance(part, ToolReturnPart)}
    number = 1 + sum(isinstance(message, ModelResponse) for message in messages)
    turn = await interface.answer(interface.trip_of(str(prompt)), number, results, WAITS)
    calls = [ToolCallPart(asked.name, dict(asked.arguments), asked.call_id(number)) for asked in turn.calls]
    return ModelResponse([TextPart(turn.text), *calls])


def tools_of(agent: str) -> list[Tool[None]]:
    return [
        Tool(
            TOOLS[name].function,
            takes_ctx=False,
            requires_approval=TOOLS[name].needs_approval,
            metadata={"agentops": {"effect": TOOLS[name].effect}},
        )
        for name in TOOLS_OF[agent]
    ]


async def check_visa(prompt: str) -> str:
    """Check a visa. A child run takes its place."""
    raise AssertionError("the child run is executed instead")


def agent_of(name: str, **options: Any) -> Any:
    model = FunctionModel(respond, model_name=MODEL)
    return durable_function(Agent(model, name=name, capabilities=[AgentopsDurability()], **options))


def served() -> list[Any]:
    question = {"type": "object", "properties": {"question": {"type": "string"}}}
    people = ExternalToolset([ToolDefinition(name=ASK, parameters_json_schema=question)], id="people")
    visa = Tool(check_visa, takes_ctx=False, metadata={"agentops": {"child": VISA}})
    return [agent_of(TRIP, tools=[*tools_of(TRIP), visa], toolsets=[people]), agent_of(VISA, tools=tools_of(VISA))]
