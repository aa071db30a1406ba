"""Payloads of the lifecycle of a run: creation, status changes, recovery, end."""

from __future__ import annotations

from logging import WARNING

from pydantic import JsonValue

from timeline.events.base import (
    Count,
    EventKind,
    EventType,
    Family,
    Millis,
    Moment,
    Money,
    Name,
    Payload,
    because,
    by,
    number,
    seconds,
    sentence,
)
from timeline.reasons import OPERATOR, REASON_LABELS, reason_label

RUN = Family("run", "Run", icon="run")

#: Reasons of waits that end when a policy resumes the run.
_POLICY_WAITS = ("on_error", "on_dead", "on_cut", "on_refused")


@EventKind(EventType.RUN_CREATED, RUN, status="queued")
class RunCreated(Payload):
    """A run was created. `changed` names the agent fields that a fork changes, such as `model` or `instructions`."""

    agent: str | None = None
    agent_version: Count | None = None
    prompt: str | None = None
    parent_run_id: str | None = None
    resumed_from: str | None = None
    forked_from: str | None = None
    forked_at_step: Count | None = None
    changed: list[Name] | None = None
    by: str | None = None

    def describe(self) -> str:
        origin = None
        if self.resumed_from:
            origin = f"to resume {self.resumed_from}"
        elif self.forked_from:
            step = None if self.forked_at_step is None else f"after step {self.forked_at_step}"
            other = f"with changed {' and '.join(self.changed)}".replace("_", " ") if self.changed else None
            origin = sentence(f"as a fork of {self.forked_from}", step, other)
        elif self.parent_run_id:
            origin = f"as a child of {self.parent_run_id}"
        return sentence("Run created", self.agent and f"for agent {self.agent}", origin, by(self.by))


@EventKind(EventType.RUN_STARTED, RUN, status="running")
class RunStarted(Payload):
    """The run started. From an external runner, the first event, which creates the run.

    `prompt` is a text, or a list of messages with `role` and `content`, with which the conversation begins.
    `parent_run_id` makes the run a child of another one: this site's ID of it, or the runner's. Only the first event
    sets it.
    """

    worker: str | None = None
    epoch: Count | None = None
    agent: str | None = None
    session_id: str | None = None
    model: str | None = None
    prompt: str | list[JsonValue] | None = None
    title: str | None = None
    parent_run_id: str | None = None

    def describe(self) -> str:
        return sentence("Run started", self.worker and f"on {self.worker}")


@EventKind(EventType.RUN_PHASE, RUN, status_field="status")
class RunPhase(Payload):
    """The status changed to one without its own event type, such as `queued` at the end of a slice.

    `running` with the reason `reopened`: a further event came for an external run that had ended as abandoned.

    A runner may also describe its current work in any word, such as "planning", as `phase` or as `status`. The event is
    then stored with the status `running` and this word as `phase`.
    """

    status: str | None = None
    phase: str | None = None
    reason: str | None = None

    def describe(self) -> str:
        return sentence(f"Run is {self.phase or self.status or 'running'}", because(self.reason))


@EventKind(EventType.RUN_WAITING, RUN, status="waiting", is_warning=True, is_wait=True, updates_call=True)
class RunWaiting(Payload):
    """The run waits and occupies no worker. `question` and `choices` are the agent's question to a person.

    An external session that waits for its user sends `result` and the fields after it: the answer to the last message,
    and the cost of the whole run so far.
    """

    reason: Name
    until: Moment | None = None
    question: str | None = None
    choices: list[str] | None = None
    result: JsonValue = None
    structured_output: JsonValue = None
    cost_usd: Money | None = None

    def describe(self) -> str:
        if self.question is not None:
            offered = because(" / ".join(self.choices)) if self.choices else None
            return sentence("Waiting for an answer:", self.question, offered)
        until = None if self.until is None else f"until {self.until:%Y-%m-%d %H:%M:%S %Z}"
        resumed = "to be resumed" if self.reason in _POLICY_WAITS else None
        label = reason_label(self.reason) if self.reason in REASON_LABELS else f"for {self.reason}"
        return sentence("Waiting", resumed, label, until)


@EventKind(EventType.RUN_PAUSED, RUN, status="paused", is_warning=True, is_wait=True)
class RunPaused(Payload):
    """The run paused. It continues when a person, a program or a policy resumes it."""

    reason: Name
    by: str | None = None
    detail: str | None = None

    def describe(self) -> str:
        head = sentence("Paused", by(self.by), _unless_by(self.by, self.reason))
        return f"{head}: {self.detail}" if self.detail else head


@EventKind(EventType.RUN_RESUMED, RUN, status="resumed", is_terminal=True, is_reserved=True)
class RunResumed(Payload):
    """The run was resumed: run `run_id` continues it. `reason` is why a policy resumed it."""

    run_id: Name
    by: str | None = None
    reason: str | None = None

    def describe(self) -> str:
        return sentence(f"Continued by run {self.run_id}", self.by and f"(resumed by {self.by})")


@EventKind(
    EventType.RUN_RECOVERED, RUN, status="running", icon="retry", is_reserved=True, is_warning=True, log_level=WARNING
)
class RunRecovered(Payload):
    """Another worker took over the run because its worker stopped renewing the lease."""

    cause: Name
    epoch: Count | None = None
    previous_epoch: Count | None = None
    last_event_at: Moment | None = None

    def describe(self) -> str:
        return sentence("Recovered by another worker", because(self.cause))


@EventKind(EventType.RUN_ROLLED_BACK, RUN, is_reserved=True, is_warning=True, log_level=WARNING)
class RunRolledBack(Payload):
    """Messages of an incomplete step were removed from the conversation. They remain in the log."""

    reason: str | None = None
    positions: list[Count] | None = None

    def describe(self) -> str:
        count = number(len(self.positions), "message") if self.positions else None
        return sentence("Rolled back", count, because(self.reason))


@EventKind(EventType.RUN_SESSION, RUN, is_reserved=True)
class RunSession(Payload):
    """A worker opens a session of a command-line program.

    `resumed`: the session whose transcript it continues. `lost`: the run has earlier answers, but no transcript of them
    can be continued here, so the session is new. `cause`: the reason for that, if known: `earlier_checkpoint` if the
    run was forked at a checkpoint, because the transcript also contains later steps.
    """

    session_id: str
    program: Name
    resumed: str | None = None
    lost: bool | None = None
    cause: Name | None = None

    def describe(self) -> str:
        how = "begins"
        if self.resumed:
            how = f"continues {self.resumed}"
        elif self.lost and self.cause == "earlier_checkpoint":
            how = (
                "begins anew with the user messages, because the run was forked at an earlier checkpoint, and the "
                "transcript goes on after it"
            )
        elif self.lost:
            how = "begins anew, because no transcript of the earlier steps can be continued"
        return sentence(f"Session {self.session_id} of {self.program}", how)


@EventKind(EventType.RUN_COMPLETED, RUN, status="completed", is_terminal=True)
class RunCompleted(Payload):
    """The run completed. Only external runners send `result` and the fields after it."""

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


@EventKind(EventType.RUN_FAILED, RUN, status="failed", is_terminal=True, is_failure=True)
class RunFailed(Payload):
    """The run failed and cannot be resumed. Only external runners send `usage` and `cost_usd`."""

    error_type: Name
    error: str | None = None
    usage: dict[str, JsonValue] | None = None
    cost_usd: Money | None = None

    def describe(self) -> str:
        return f"Run failed: {self.error or reason_label(self.error_type)}"


@EventKind(EventType.RUN_STOPPED, RUN, status="stopped", is_terminal=True, is_warning=True)
class RunStopped(Payload):
    """The run was stopped. It cannot be resumed. Only external runners send `usage` and `cost_usd`."""

    reason: str | None = None
    by: str | None = None
    usage: dict[str, JsonValue] | None = None
    cost_usd: Money | None = None

    def describe(self) -> str:
        return sentence("Run stopped", by(self.by), _unless_by(self.by, self.reason))


def _unless_by(actor: str | None, reason: str | None) -> str | None:
    """Return the reason in parentheses. None if the actor is named and the reason only says that a person decided."""
    return None if actor and reason == OPERATOR else because(reason)
