"""Two agents of the OpenAI Agents SDK, one of which hands over to the other, recorded as a run of an agentops site.

Usage: SITE_URL=http://127.0.0.1:8000 SITE_KEY=… python openai_agents.py
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

from agents import (
    Agent,
    Handoff,
    ItemHelpers,
    Model,
    ModelResponse,
    RunHooks,
    Runner,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from agentops.client import RecordedCall, RecordedRun, Recorder


class RecordingHooks(RunHooks[Any]):
    """Records what the SDK tells its hooks: `Runner.run(…, hooks=RecordingHooks(run))`."""

    def __init__(self, run: RecordedRun) -> None:
        self.run = run
        self.calls: dict[str, RecordedCall] = {}
        #: The calls of the last answer, by their tool.
        self.asked: dict[str, ResponseFunctionToolCall] = {}

    async def on_llm_end(self, context: Any, agent: Any, response: ModelResponse) -> None:
        """Record an answer of the model."""
        texts = [ItemHelpers.extract_text(item) or "" for item in response.output]
        calls = [item for item in response.output if isinstance(item, ResponseFunctionToolCall)]
        self.asked = {call.name: call for call in calls}
        self.run.turn(
            "".join(texts) or None,
            tool_calls=[(call.call_id, call.name, call.arguments) for call in calls],
            usage={"input_tokens": response.usage.input_tokens, "output_tokens": response.usage.output_tokens},
            model=agent.model if isinstance(agent.model, str) else None,
        )

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        """Record that a tool starts."""
        call = self.run.tool_call(tool.name, context.tool_arguments, call_id=context.tool_call_id)
        self.calls[context.tool_call_id] = call
        call.begin()

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: object) -> None:
        """Record the output of a tool."""
        self.calls.pop(context.tool_call_id).end(result)

    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
        """Record that another agent goes on: the SDK makes a tool of each handoff."""
        call = self.asked[Handoff.default_tool_name(to_agent)]
        self.run.tool(call.name, call.arguments, f"{to_agent.name} goes on", call_id=call.call_id)
        self.run.event("handoff", from_agent=from_agent.name, to_agent=to_agent.name, call_id=call.call_id)


class ScriptedModel(Model):
    """Answers from a list, without a provider. With a key of OpenAI, leave it out: the SDK has its own models."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
        """Return the next answer."""
        usage = Usage(requests=1, input_tokens=50, output_tokens=10, total_tokens=60)
        return ModelResponse(output=[self.answers.pop(0)], usage=usage, response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        """Refuse to stream; `Runner.run` does not ask for it."""
        raise NotImplementedError


def call(call_id: str, name: str, **arguments: Any) -> ResponseFunctionToolCall:
    """Return an answer that asks for a tool call."""
    return ResponseFunctionToolCall(
        type="function_call", call_id=call_id, name=name, arguments=json.dumps(arguments), status="completed"
    )


def say(text: str) -> ResponseOutputMessage:
    """Return an answer in words."""
    content = ResponseOutputText(type="output_text", text=text, annotations=[])
    return ResponseOutputMessage(id="m1", type="message", role="assistant", content=[content], status="completed")


@function_tool
def look_up(order: str) -> str:
    """Return the state of an order."""
    return f"order {order} has been sent"


clerk = Agent(
    name="clerk", model=ScriptedModel(call("c2", "look_up", order="17"), say("It is on its way.")), tools=[look_up]
)
desk = Agent(name="desk", model=ScriptedModel(call("c1", "transfer_to_clerk")), handoffs=[clerk])


async def main() -> None:
    """Run the agents."""
    # Its own tracing sends to OpenAI.
    set_tracing_disabled(disabled=True)
    prompt = "Where is my order 17?"
    async with Recorder(os.environ["SITE_URL"], os.environ["SITE_KEY"], agent="desk", prompt=prompt) as run:
        result = await Runner.run(desk, prompt, hooks=RecordingHooks(run))
        run.complete(result.final_output)
    print(result.final_output)


if __name__ == "__main__":
    asyncio.run(main())
