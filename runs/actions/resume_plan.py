"""What a resume does: one decision from the message, its mode and the earlier attempts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Generic, TypeVar

from runs.conversation.message_text import CONTINUE

T = TypeVar("T")


class Mode(Enum):
    #: Continue the conversation of an earlier attempt.
    RESUME = auto()
    #: Start a new conversation.
    FRESH = auto()


@dataclass(frozen=True)
class EarlierAttempt(Generic[T]):
    """An earlier attempt of the lineage. `has_session`: whether it has a conversation to continue."""

    run: T
    has_session: bool


@dataclass(frozen=True)
class ResumePlan(Generic[T]):
    mode: Mode
    #: The attempt whose conversation continues; None for a fresh start.
    session: T | None
    #: The user messages with which the new run begins.
    turns: list[Any]


def plan(message: str | None, *, append: bool, attempts: Sequence[EarlierAttempt[T]], prompt: str) -> ResumePlan[T]:
    """Return what to do. `attempts` is newest first; `prompt` is the first prompt of the lineage.

    | message | mode    | a session | what happens                                             |
    |---------|---------|-----------|----------------------------------------------------------|
    | none    | any     | yes       | resume with "continue"                                   |
    | given   | append  | yes       | resume, the message as a new user turn                   |
    | given   | replace | any       | fresh start with the message as its prompt               |
    | none    | any     | no        | fresh start with the prompt                              |
    | given   | append  | no        | fresh start with the prompt, the message after it        |
    """
    if message is not None and not append:
        return ResumePlan(Mode.FRESH, None, [message])
    newest = next((attempt.run for attempt in attempts if attempt.has_session), None)
    if newest is not None:
        return ResumePlan(Mode.RESUME, newest, [message if message is not None else CONTINUE])
    return ResumePlan(Mode.FRESH, None, [turn for turn in (prompt, message) if turn])
