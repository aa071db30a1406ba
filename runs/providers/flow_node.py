"""The provider of runs that execute a tool node or a human node of a flow: it requests the node's one call, then ends.

The call of a node thereby has all features of tool calls: it is stored, and can have approvals, hooks, questions and
unknown outcomes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest, ToolCallPart, ToolReturnPart, UserPromptPart

from runs.providers.base import ModelCall, ProviderUnusable
from runs.providers.streaming_provider import Piece, StreamingProvider

NAME = "flow_node"
#: The setting that holds the call: {"tool": name, "arguments": {...}}.
CALL = "flow_call"


class FlowNodeProvider(StreamingProvider):
    """The provider of tool nodes and human nodes. Users' agents cannot use it."""

    def check(self, model: str, settings: Mapping[str, Any]) -> None:
        if not isinstance(settings.get(CALL), dict):
            raise ProviderUnusable(f"the provider {NAME!r} executes nodes of flows only")

    async def answer(self, call: ModelCall) -> AsyncGenerator[Piece, None]:
        request = call.settings[CALL]
        outcome = _stored_outcome(call.history)
        if outcome is None:
            yield ToolCallPart(request["tool"], dict(request["arguments"]), f"node-call-{call.number}")
        else:
            yield f"{request['tool']}: {outcome}"


def _stored_outcome(history: Sequence[ModelMessage]) -> str | None:
    """Return the outcome of the node's call, or None if the call has to be requested (again).

    Pausing a run gives an open question, or a call that was not started, the outcome `denied`. A user message after
    such a result means that the run was resumed, so the call is requested again.
    """
    outcome: str | None = None
    for message in history:
        for part in message.parts if isinstance(message, ModelRequest) else ():
            if isinstance(part, ToolReturnPart):
                outcome = part.outcome
            elif isinstance(part, UserPromptPart) and outcome == "denied":
                outcome = None
    return outcome
