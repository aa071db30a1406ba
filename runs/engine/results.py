"""The results of an action of the step loop: how to continue, or which objects were committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto

from pydantic_ai.messages import ModelMessage

from runs.hooks.base import HookEvent
from runs.lifecycle.approval_rows import ApprovalRequest
from runs.models import AgentRunMessage, AgentRunToolCall
from runs.providers.retries import Failure
from timeline.log import Entry


class Progress(Enum):
    """How the loop continues."""

    CONTINUE = auto()  # decide again
    RELEASED = auto()  # this worker no longer holds the run
    RELOAD = auto()  # the database failed: load the run again


@dataclass(frozen=True)
class AnswerCommitted:
    """The answer of the model is committed, with its calls as planned, or the first of them as running."""

    row: AgentRunMessage
    message: ModelMessage
    calls: Sequence[AgentRunToolCall]
    is_first_started: bool


@dataclass(frozen=True)
class NoAnswer:
    """The model failed. `until` is the time of the next attempt; None if no attempt is left."""

    failure: Failure
    until: datetime | None


@dataclass(frozen=True)
class CallClosed:
    """The next open call has its result. `is_turn_started`: the start of the next model call was committed with it."""

    row: AgentRunMessage
    message: ModelMessage
    is_last: bool
    is_turn_started: bool


@dataclass(frozen=True)
class CallUnknown:
    """The outcome of the next open call is unknown, and the policy is to wait for a person."""

    call: AgentRunToolCall


@dataclass(frozen=True)
class MessagesTaken:
    """Messages of the inbox are part of the conversation."""

    messages: Sequence[tuple[AgentRunMessage, ModelMessage]]


@dataclass(frozen=True)
class SpawnPermitted:
    """The next open call may open its child runs. `events` are committed when it does."""

    call: AgentRunToolCall
    events: Sequence[Entry]


@dataclass(frozen=True)
class SpawnRefused:
    """The next call would spawn child runs, and none could be opened. Nothing was written."""

    why: str


@dataclass(frozen=True)
class CheckpointSaved:
    """The last step has its checkpoint."""

    step: int


@dataclass(frozen=True)
class ApprovalNeeded:
    """The next open call has to wait for a person. `events` are committed with the request."""

    call: AgentRunToolCall
    request: ApprovalRequest
    #: Whether hooks have changed the model's arguments.
    is_changed: bool
    events: Sequence[Entry] = ()


@dataclass(frozen=True)
class HooksAsked:
    """The hooks of an event were called for a step, and their verdicts are committed."""

    event: HookEvent
    step: int


ActResult = (
    Progress
    | AnswerCommitted
    | NoAnswer
    | CallClosed
    | CallUnknown
    | MessagesTaken
    | SpawnPermitted
    | SpawnRefused
    | CheckpointSaved
    | ApprovalNeeded
    | HooksAsked
)
