"""The public imports for modules with a custom provider; see docs/guides/providers.md.

from agentops.providers import ModelCall, StreamingProvider

class Echo(StreamingProvider):
    name = "echo"

    async def answer(self, call: ModelCall):
        yield "Hello."
"""

from __future__ import annotations

from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ThinkingPart, ToolCallPart
from pydantic_ai.usage import RequestUsage

from runs.providers.base import FollowUp, IncompleteAnswer, ModelCall, Provider, ProviderUnusable
from runs.providers.streaming_provider import AnswerEnd, Piece, StreamingProvider

__all__ = [
    "AnswerEnd",
    "FollowUp",
    "IncompleteAnswer",
    "ModelCall",
    "ModelHTTPError",
    "Piece",
    "Provider",
    "ProviderUnusable",
    "RequestUsage",
    "StreamingProvider",
    "ThinkingPart",
    "ToolCallPart",
]
