"""The results of an action of the step loop: how to continue, or which objects were committed.

Also the two interruptions of a model call or a tool: the shutdown of the worker, and a stop of the run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto

from pydantic_ai.messages import ModelMessage

from runs.hooks.base import HookEvent
from runs.lifecycle.approval_rows import ApprovalRequest
from runs.models import AgentRunMessage, AgentRunToolCall
from runs.providers.retries import Failure
from timeline.log import Entry


class ShutdownDue(Exception):
    """The grace period of a shutdown is over: hand the run back."""


class StopPending(Exception):
    """A stop command is pending: abandon the current call. The next decision then stops the run."""


@dataclass
class Shutdown:
    """The shutdown of this process, if requested. Running calls may continue until `deadline` (monotonic seconds)."""

    requested: threading.Event = field(default_factory=threading.Event)
    deadline: float = float("inf")

    def request(self, grace_s: float) -> None:
        """Request the shutdown. A second request only counts if its grace period ends earlier."""
        self.deadline = min(self.deadline, time.monotonic() + grace_s)
        self.requested.set()

    @property
    def is_due(self) -> bool:
        return self.requested.is_set() and time.monotonic() >= self.deadline


class Progress(Enum):
    """How the loop continues."""

    CONTINUE = auto()  # decide again
    RELEASED = auto()  # this worker no longer holds the run
    RELOAD = auto()  # the database failed: load the run again


@dataclass(frozen=True)
class AnswerCommitted:
    """The answer of the model is committed, with its calls as planned.

    `is_first_started`: the same commit has marked the first call running.
    """

    row: AgentRunMessage
    message: ModelMessage
    calls: Sequence[AgentRunToolCall]
    is_first_started: bool


@dataclass(frozen=True)
class ModelFailed:
    """The model call failed. `until` is the time of the next attempt; None if no attempt is left."""

    failure: Failure
    until: datetime | None


@dataclass(frozen=True)
class CallClosed:
    """The next open call has its result.

    `is_last`: it was the last open call. `is_turn_started`: the start of the next model call was committed with it.
    """

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
    """The next open call may open its child runs. `events` are committed together with the children."""

    call: AgentRunToolCall
    events: Sequence[Entry]


@dataclass(frozen=True)
class SpawnRefused:
    """The next open call would spawn child runs, but they cannot be opened. Nothing was written."""

    reason: str


@dataclass(frozen=True)
class CheckpointSaved:
    """The last step has its checkpoint."""

    step: int


@dataclass(frozen=True)
class ApprovalNeeded:
    """The next open call needs the approval of a person. `events` are committed with the request."""

    call: AgentRunToolCall
    request: ApprovalRequest
    #: Whether hooks have changed the model's arguments.
    is_changed: bool
    events: Sequence[Entry] = ()


@dataclass(frozen=True)
class HooksAsked:
    """The hooks of a turn event were called for a step, and their verdicts are committed."""

    event: HookEvent
    step: int


ActResult = (
    Progress
    | AnswerCommitted
    | ModelFailed
    | CallClosed
    | CallUnknown
    | MessagesTaken
    | SpawnPermitted
    | SpawnRefused
    | CheckpointSaved
    | ApprovalNeeded
    | HooksAsked
)
