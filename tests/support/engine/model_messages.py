"""What a model was sent, as short texts; and a model that never ends."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart

from runs.providers import messages
from runs.providers.base import ModelCall
from tests.support.processes.scripted_model import Move, Play


def endless(requests: list[tuple[int, list[ModelMessage]]]) -> Play:
    """Asks for a tool in every step, and keeps what it was asked with."""

    def play(call: ModelCall) -> Iterable[Move]:
        requests.append((call.number, list(call.history)))
        yield f"Step {call.number}."
        yield ToolCallPart("ledger_read", {"n": call.number}, f"call-{call.number}")

    return play


def texts(history: list[ModelMessage]) -> list[str]:
    """What was said, in order: the request that a provider would get, in short."""
    said = []
    for message in history:
        for part in message.parts:
            content = getattr(part, "content", None) or getattr(part, "tool_call_id", "")
            said.append(f"{'<' if isinstance(message, ModelResponse) else '>'} {content}")
    return said


def plain(message: ModelMessage) -> str:
    return messages.canonical(messages.dump(message))
