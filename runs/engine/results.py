"""What an act of the step loop returns: how the loop goes on, or what was committed, for the loop to take over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto

from pydantic_ai.messages import ModelMessage

from runs.models import AgentRunMessage, AgentRunToolCall
from runs.providers.retries import Failure


class Progress(Enum):
    CONTINUE = auto()  # nothing to take over: decide again
    RELEASED = auto()  # the run has left this worker's hands
    RELOAD = auto()  # storage failed, and what was committed is not known: read the rows again


@dataclass(frozen=True)
class Answered:
    """The model has answered. `calls` are planned with the answer; the first may be marked running with it."""

    row: AgentRunMessage
    message: ModelMessage
    calls: Sequence[AgentRunToolCall]
    first_started: bool


@dataclass(frozen=True)
class NoAnswer:
    """The model has failed, and this worker does not ask it again. `until`: when another may; None for never."""

    failure: Failure
    until: datetime | None


@dataclass(frozen=True)
class CallClosed:
    """The next open call has its result. `turn_started`: the next model call's start was committed with it."""

    row: AgentRunMessage
    message: ModelMessage
    is_last: bool
    turn_started: bool


@dataclass(frozen=True)
class CallUnknown:
    """Nobody knows what came of the next open call, and the agent's policy is to wait for someone who says it."""

    call: AgentRunToolCall


@dataclass(frozen=True)
class MessagesTaken:
    """User turns of the inbox are in the conversation."""

    added: Sequence[tuple[AgentRunMessage, ModelMessage]]


@dataclass(frozen=True)
class Checkpointed:
    """The last step has its checkpoint."""

    step: int


ActResult = Progress | Answered | NoAnswer | CallClosed | CallUnknown | MessagesTaken | Checkpointed
