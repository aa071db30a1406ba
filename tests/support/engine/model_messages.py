"""Short texts of the messages that a model receives, and a model that never finishes."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart

from runs.providers import messages
from runs.providers.base import ModelCall
from tests.support.processes.scripted_model import Move, Play


def endless(requests: list[tuple[int, list[ModelMessage]]]) -> Play:
    """Return a play that requests a tool in every step. Append each call's number and history to `requests`."""

    def play(call: ModelCall) -> Iterable[Move]:
        requests.append((call.number, list(call.history)))
        yield f"Step {call.number}."
        yield ToolCallPart("ledger_read", {"n": call.number}, f"call-{call.number}")

    return play


def texts(history: list[ModelMessage]) -> list[str]:
    """Return short texts of the history, in order, as a provider would receive it."""
    said = []
    for message in history:
        for part in message.parts:
            content = getattr(part, "content", None) or getattr(part, "tool_call_id", "")
            said.append(f"{'<' if isinstance(message, ModelResponse) else '>'} {content}")
    return said


def plain(message: ModelMessage) -> str:
    return messages.canonical(messages.dump(message))
