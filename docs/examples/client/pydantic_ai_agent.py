"""An agent of pydantic-ai, recorded as a run of an agentops site.

Usage: SITE_URL=http://127.0.0.1:8000 SITE_KEY=… python pydantic_ai_agent.py
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from pydantic_ai import Agent, ModelResponse, RetryPromptPart, ToolReturnPart
from pydantic_ai.models.test import TestModel

from agentops.client import RecordedRun, Recorder

# It calls each tool once, without a provider. Put your model here: "anthropic:claude-sonnet-4-5".
agent = Agent(TestModel(custom_output_text="It is sunny in Zürich."), instructions="You know the weather.")


@agent.tool_plain
def get_weather(city: str) -> str:
    """Return the weather of a city."""
    return f"sunny in {city}"


def record_answer(run: RecordedRun, response: ModelResponse) -> None:
    """Record an answer of the model: its texts, the calls that it asks for, and its tokens."""
    run.turn(
        response.text,
        thinking=response.thinking,
        tool_calls=[(call.tool_call_id, call.tool_name, call.args) for call in response.tool_calls],
        usage={"input_tokens": response.usage.input_tokens, "output_tokens": response.usage.output_tokens},
        model=response.model_name,
    )


def record_results(run: RecordedRun, parts: Any) -> None:
    """Record the results of the tools, which pydantic-ai sends with its next request."""
    for part in parts:
        if isinstance(part, ToolReturnPart):
            run.tool(part.tool_name, output=part.content, call_id=part.tool_call_id)
        elif isinstance(part, RetryPromptPart) and part.tool_name:
            run.tool(part.tool_name, error=part.model_response(), call_id=part.tool_call_id)


async def main() -> None:
    """Run the agent, and record each of its steps when it is done."""
    prompt = "What is the weather in Zürich?"
    async with Recorder(os.environ["SITE_URL"], os.environ["SITE_KEY"], agent="weather", prompt=prompt) as run:
        async with agent.iter(prompt) as steps:
            async for node in steps:
                if Agent.is_call_tools_node(node):
                    record_answer(run, node.model_response)
                elif Agent.is_model_request_node(node):
                    record_results(run, node.request.parts)
        assert steps.result is not None
        run.complete(steps.result.output)
    print(steps.result.output)


if __name__ == "__main__":
    asyncio.run(main())
