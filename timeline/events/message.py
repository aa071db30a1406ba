"""Payload of a message that was added to the conversation."""

from __future__ import annotations

from typing import Literal

from pydantic import JsonValue

from timeline.events.base import Count, EventKind, Family, Payload, Show, number, sentence
from timeline.events.vocabulary import EventType

MESSAGE = Family("message", "Messages", icon="user", show=Show.MESSAGES)

_SPEAKERS = {
    "system": "System message",
    "user": "User message",
    "assistant": "Assistant message",
    "tool_result": "Tool result",
}


@EventKind(EventType.MESSAGE_ADDED, MESSAGE)
class MessageAdded(Payload):
    """A message was added to the conversation.

    The engine sends a `preview`; external runners send the full `content`.
    """

    role: Literal["system", "user", "assistant", "tool_result"]
    position: Count | None = None
    preview: str | None = None
    truncated: bool = False
    bytes: Count | None = None
    content: JsonValue = None

    def describe(self) -> str:
        size = number(self.bytes, "byte")
        return sentence(_SPEAKERS[self.role], "added", size and f"({size})")
