"""Models of pydantic-ai that answer by a script, for durable agents in tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponsePart, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from agentops.durable.pydantic_ai import AgentopsDurability

#: A response: its text, its parts, or an exception.
Reply = str | Sequence[ModelResponsePart] | ModelResponse | Exception


class Script:
    """Replies of a model in order. Which one comes next depends on the history alone, as for a real model."""

    def __init__(self, *replies: Reply, name: str = "scripted-1") -> None:
        self.replies = replies
        self.name = name
        #: The history of each request.
        self.requests: list[list[ModelMessage]] = []
        #: The model, which does not stream, and the same one, which streams texts word by word.
        self.model = FunctionModel(self._reply, model_name=name)
        self.streaming = FunctionModel(self._reply, stream_function=self._stream, model_name=name)

    def _reply(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.requests.append(list(messages))
        reply = self.replies[sum(isinstance(message, ModelResponse) for message in messages)]
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, ModelResponse):
            return reply
        return ModelResponse(parts=[TextPart(reply)] if isinstance(reply, str) else list(reply))

    async def _stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        for index, part in enumerate(self._reply(messages, info).parts):
            if isinstance(part, TextPart):
                for word in part.content.split(" "):
                    yield f"{word} "
            elif isinstance(part, ToolCallPart):
                yield {index: DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)}


def call(name: str, /, call_id: str = "", **arguments: Any) -> ToolCallPart:
    """Return a tool call. Without an ID, the ID is the name of the tool."""
    return ToolCallPart(name, arguments, call_id or name)


def durable_agent(script: Script, name: str = "support", *, capabilities: Sequence[Any] = (), **options: Any) -> Agent:
    """Return a durable agent with a scripted model. `options`: of the agent, and `durability` with its options."""
    durability = AgentopsDurability(**options.pop("durability", {}))
    return Agent(script.model, name=name, capabilities=[*capabilities, durability], **options)


def results_of(messages: list[ModelMessage]) -> dict[str, Any]:
    """Return the results of tools in a history, by the name of the tool."""
    parts = [part for message in messages for part in message.parts]
    return {part.tool_name: part.content for part in parts if isinstance(part, ToolReturnPart)}
