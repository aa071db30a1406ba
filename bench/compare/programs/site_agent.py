"""The model and the tools of the agent that the site itself executes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import task

from agentops.providers import ModelCall, Piece, RequestUsage, StreamingProvider, ToolCallPart
from agentops.tools import ToolContext, tool


class ScriptedProvider(StreamingProvider):
    """Requests the three tools, then `publish`, and then ends."""

    name = "scripted"

    def check(self, model: str, settings: object) -> None:
        """Accept any model."""

    async def answer(self, call: ModelCall) -> AsyncIterator[Piece]:
        if call.number > 2:
            yield "Published."
        else:
            yield task.ask_model(call.number)
            for name in task.TOOLS if call.number == 1 else (task.PUBLISH,):
                yield ToolCallPart(name, {})
        yield RequestUsage(input_tokens=1, output_tokens=1)


@tool()
def tool_1(ctx: ToolContext) -> str:
    """Call the first tool."""
    return task.call_tool("tool_1", ctx.idempotency_key)


@tool()
def tool_2(ctx: ToolContext) -> str:
    """Call the second tool."""
    return task.call_tool("tool_2", ctx.idempotency_key)


@tool()
def tool_3(ctx: ToolContext) -> str:
    """Call the third tool."""
    return task.call_tool("tool_3", ctx.idempotency_key)


@tool(needs_approval=True)
def publish(ctx: ToolContext) -> str:
    """Publish, if a person approves."""
    return task.call_tool("publish", ctx.idempotency_key)
