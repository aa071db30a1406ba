"""An agent of the OpenAI Agents SDK: function tools with approvals and parallel calls, and an agent as a tool."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, FunctionTool, Model, ModelResponse, Usage, function_tool
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from agentops.durable.openai_agents import durable_function, effect
from tests.chaos.programs import interface
from tests.chaos.programs.interface import CHECK_VISA, MODEL, TOOLS, TOOLS_OF, TRIP, VISA, Turn

WAITS = interface.WAITS_OF["openai_agents"]


class TripModel(Model):
    """Answers by the script. It does not stream."""

    model = MODEL

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:  # noqa: A002
        items = [{"role": "user", "content": input}] if isinstance(input, str) else input
        prompt = next(item["content"] for item in items if item.get("role") == "user")
        results = {
            interface.name_of(item["call_id"]): str(item["output"])
            for item in items
            if item.get("type") == "function_call_output"
        }
        number = 1 + sum(item.get("type") == "message" and item.get("role") == "assistant" for item in items)
        turn = await interface.answer(interface.trip_of(str(prompt)), number, results, WAITS)
        usage = Usage(requests=1, input_tokens=10 * number, output_tokens=5, total_tokens=10 * number + 5)
        return ModelResponse(output=output_of(turn, number), usage=usage, response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        raise AssertionError("the agent does not stream")


def output_of(turn: Turn, number: int) -> list[Any]:
    text = ResponseOutputText(type="output_text", text=turn.text, annotations=[])
    message = ResponseOutputMessage(
        id=f"message-{number}", type="message", role="assistant", content=[text], status="completed"
    )
    calls = [
        ResponseFunctionToolCall(
            type="function_call",
            call_id=asked.call_id(number),
            name=asked.name,
            arguments=json.dumps(
                {"input" if key == "prompt" else key: value for key, value in asked.arguments.items()}
            ),
            status="completed",
        )
        for asked in turn.calls
    ]
    return [message, *calls]


def tools_of(agent: str) -> list[FunctionTool]:
    return [
        effect(TOOLS[name].effect)(function_tool(TOOLS[name].function, needs_approval=TOOLS[name].needs_approval))
        for name in TOOLS_OF[agent]
    ]


def served() -> list[Any]:
    visa = Agent(name=VISA, model=TripModel(), tools=tools_of(VISA))
    check_visa = visa.as_tool(tool_name=CHECK_VISA, tool_description="Check a visa.")
    trip = Agent(name=TRIP, model=TripModel(), tools=[*tools_of(TRIP), check_visa])
    return [durable_function(trip, children=[visa], streams=False), durable_function(visa, streams=False)]
