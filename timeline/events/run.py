"""Payloads of the life of a run: created, moved from status to status, recovered, ended."""

from __future__ import annotations

from pydantic import JsonValue

from timeline.events.base import (
    Count,
    Millis,
    Moment,
    Money,
    Name,
    Payload,
    because,
    by,
    number,
    register,
    seconds,
    sentence,
)
from timeline.events.vocabulary import EventType

#: What a policy resumes a run after, by the reason of the wait for it.
_RESUMED_AFTER = {"on_error": "an error", "on_dead": "the loss of its worker"}
#: The reason of a run that its worker's death has put under suspicion.
RETRY_ALONE, _RETRIED_ALONE = "retry_alone", "to be retried alone after a worker died"


@register(EventType.RUN_CREATED)
class RunCreated(Payload):
    """A run was created. `changed` names what a fork's agent has otherwise, such as `model` or `instructions`."""

    agent: str | None = None
    agent_version: Count | None = None
    prompt: str | None = None
    parent_run_id: str | None = None
    resumed_from: str | None = None
    forked_from: str | None = None
    forked_at_step: Count | None = None
    #: What a fork's agent has otherwise: "model", "instructions" and the like.
    changed: list[Name] | None = None
    by: str | None = None

    def describe(self) -> str:
        origin = None
        if self.resumed_from:
            origin = f"to resume {self.resumed_from}"
        elif self.forked_from:
            step = None if self.forked_at_step is None else f"after step {self.forked_at_step}"
            other = f"with other {' and '.join(self.changed)}".replace("_", " ") if self.changed else None
            origin = sentence(f"as a fork of {self.forked_from}", step, other)
        elif self.parent_run_id:
            origin = f"as a child of {self.parent_run_id}"
        return sentence("Run created", self.agent and f"for agent {self.agent}", origin, by(self.by))


@register(EventType.RUN_STARTED)
class RunStarted(Payload):
    """A worker started the run. An external runner says what it started, which opens the run here."""

    worker: str | None = None
    epoch: Count | None = None
    agent: str | None = None
    session_id: str | None = None
    model: str | None = None
    prompt: str | None = None
    title: str | None = None

    def describe(self) -> str:
        return sentence("Run started", self.worker and f"on {self.worker}")


@register(EventType.RUN_PHASE)
class RunPhase(Payload):
    """The status changed without an event type of its own, such as back to `queued` at the end of a slice."""

    status: Name
    reason: str | None = None

    def describe(self) -> str:
        if self.reason == RETRY_ALONE and self.status == "queued":
            return f"Run is queued, {_RETRIED_ALONE}"
        return sentence(f"Run is {self.status}", because(self.reason))


@register(EventType.RUN_WAITING)
class RunWaiting(Payload):
    """The run waits and holds no worker. `question` and `choices` are what its agent asks a person."""

    reason: Name
    until: Moment | None = None
    question: str | None = None
    choices: list[str] | None = None

    def describe(self) -> str:
        if self.question is not None:
            offered = because(" / ".join(self.choices)) if self.choices else None
            return sentence("Waiting for an answer:", self.question, offered)
        until = None if self.until is None else f"until {self.until:%Y-%m-%d %H:%M:%S %Z}"
        if self.reason in _RESUMED_AFTER:
            return sentence(f"Waiting to be resumed after {_RESUMED_AFTER[self.reason]}", until)
        if self.reason == RETRY_ALONE:
            return sentence(f"Waiting {_RETRIED_ALONE}", until)
        return sentence(f"Waiting for {self.reason}", until)


@register(EventType.RUN_PAUSED)
class RunPaused(Payload):
    """The run paused: a person, a program or a policy decides whether to resume it."""

    reason: Name
    by: str | None = None
    detail: str | None = None

    def describe(self) -> str:
        head = sentence("Paused", by(self.by), because(self.reason))
        return f"{head}: {self.detail}" if self.detail else head


@register(EventType.RUN_RESUMED)
class RunResumed(Payload):
    """The run was resumed: run `run_id` continues it. `reason` is what made a policy resume it."""

    run_id: Name
    by: str | None = None
    reason: str | None = None

    def describe(self) -> str:
        return sentence(f"Went on as run {self.run_id}", self.by and f"(resumed by {self.by})")


@register(EventType.RUN_RECOVERED)
class RunRecovered(Payload):
    """Another worker took over a run whose worker had stopped renewing its lease."""

    cause: Name
    epoch: Count | None = None
    previous_epoch: Count | None = None
    last_event_at: Moment | None = None

    def describe(self) -> str:
        return f"Recovered by another worker ({self.cause})"


@register(EventType.RUN_ROLLED_BACK)
class RunRolledBack(Payload):
    """Messages of a step that cannot be completed left the conversation; they stay in the log."""

    reason: str | None = None
    positions: list[Count] | None = None

    def describe(self) -> str:
        count = number(len(self.positions), "message") if self.positions else None
        return sentence("Rolled back", count, because(self.reason))


@register(EventType.RUN_COMPLETED)
class RunCompleted(Payload):
    """The run ended well. External runners send the fields from `result` on: their runs have no other place."""

    summary: str | None = None
    steps: Count | None = None
    duration_ms: Millis | None = None
    result: JsonValue = None
    structured_output: JsonValue = None
    usage: dict[str, JsonValue] | None = None
    model_usage: dict[str, JsonValue] | None = None
    cost_usd: Money | None = None

    def describe(self) -> str:
        steps = number(self.steps, "step")
        return sentence("Run completed", steps and f"after {steps}", seconds(self.duration_ms))


@register(EventType.RUN_FAILED)
class RunFailed(Payload):
    """The run failed and cannot be resumed."""

    error_type: Name
    error: str | None = None

    def describe(self) -> str:
        return f"Run failed: {self.error or self.error_type}"


@register(EventType.RUN_STOPPED)
class RunStopped(Payload):
    """The run was stopped for good."""

    reason: str | None = None
    by: str | None = None

    def describe(self) -> str:
        return sentence("Run stopped", by(self.by), because(self.reason))
