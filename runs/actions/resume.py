"""Resume: a new run continues a paused one.

Everything is validated before the first write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, Generic, TypeVar
from uuid import UUID

from django.conf import settings
from django.db import transaction

from agentops.base.refusals import Conflict, Invalid
from runs import chaos
from runs.conversation.transcript import CONTINUE
from runs.errors import MessageEmpty
from runs.lifecycle import creation, inbox, transitions
from runs.lifecycle.command_outcomes import mark_applied
from runs.lifecycle.creation import Opening, Origin
from runs.models import AgentRun, AgentRunMessage
from runs.statuses import LIVE, RunStatus
from timeline.events.run import RunResumed
from timeline.models import Source

T = TypeVar("T")


class Mode(Enum):
    #: Continue the conversation of the lineage.
    RESUME = auto()
    #: Start a new conversation.
    FRESH = auto()


@dataclass(frozen=True)
class EarlierAttempt(Generic[T]):
    """A run of the lineage. `has_session`: it has messages, so its conversation can be continued."""

    run: T
    has_session: bool


@dataclass(frozen=True)
class ResumePlan(Generic[T]):
    """How a new run continues a lineage."""

    mode: Mode
    #: The run whose conversation continues; None for a fresh start.
    session: T | None
    #: The user messages at the start of the new run.
    turns: list[Any]


def plan(message: str | None, *, append: bool, attempts: Sequence[EarlierAttempt[T]], prompt: str) -> ResumePlan[T]:
    """Return how to resume. `attempts` is newest first; `prompt` is the first prompt of the lineage.

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


# --- The resume ---

Type = inbox.Type


@dataclass(frozen=True)
class ResumeResult:
    """The result of a resume."""

    #: The run that continues the old one.
    run: AgentRun
    #: Whether `run` existed before this call, because the old run was already resumed.
    is_existing: bool
    #: The previous status of the old run.
    status_before: RunStatus


def resume(
    run_id: UUID,
    *,
    by: str,
    message: str | None = None,
    media: Sequence[creation.Media] = (),
    append: bool = True,
    max_steps: int | None = None,
    kill: bool = False,
    front_end_tools: creation.FrontEndTools | None = None,
    source: Source = Source.WEB,
    reason: str = "",
) -> ResumeResult:
    """Continue a paused run as a new one, with a fresh step budget. Step numbers continue, up to the cap of the
    lineage.

    Any number of concurrent calls create one new run: the others wait for the lock on the old row, and then return the
    run of the first. A `message` is recorded as a command of the new run; `media` follow it. With `kill`, a running run
    is first taken away from its worker and paused. `reason` is the trigger of a policy, which counts its resumes by it.

    Writes nothing and raises `RunNotFound`, `MessageEmpty`, `InvalidMaxSteps`, or `Conflict` with the code
    `run_not_paused`, `run_is_external` or `max_total_steps_exceeded`.
    """
    check_message(message)
    with transaction.atomic():
        old = inbox.lock_run(run_id)
        if old.state is RunStatus.RESUMED:
            return ResumeResult(AgentRun.objects.get(resumed_from=old), is_existing=True, status_before=old.state)
        status_before = old.state
        if kill and status_before in LIVE and old.source == AgentRun.Source.NATIVE:
            transitions.kill(old, by=by)
        _check_resumable(old)
        budget = creation.checked_max_steps(max_steps, default=creation.within_cap(old.max_steps))
        opening = Opening(
            config=creation.with_front_end_tools(old.agent_config, front_end_tools),
            max_steps=budget,
            title=old.title,
            labels=old.labels,
            by=by,
            message=message,
            schedule_id=old.schedule_id,
        )
        plan = _with_media(_plan(old, message, append=append), message, media)
        new = _open_successor(old, plan, opening)
        payload = RunResumed(run_id=str(new.pk), by=by or None, reason=reason or None)
        transitions.move(old, RunStatus.RESUMED, payload, source=source, reason=reason)
        chaos.point("command.in_transaction")
    return ResumeResult(new, is_existing=False, status_before=status_before)


def check_message(message: str | None) -> None:
    """Raise `MessageEmpty` or `Invalid` if a message cannot be sent. None is valid."""
    if message is not None and not message.strip():
        raise MessageEmpty("the message must not be empty: omit it to send the default", pointer="/message")
    if message is not None and len(message) > inbox.MAX_MESSAGE:
        raise Invalid(f"a message must have at most {inbox.MAX_MESSAGE} characters", pointer="/message")


def _check_resumable(run: AgentRun) -> None:
    """Raise `Conflict` unless the run is paused, executed by this site, and has steps left."""
    if run.is_recorded:
        raise Conflict(
            "another program executes the run: resume it there", code="run_is_external", run_status=run.status
        )
    if run.state is not RunStatus.PAUSED:
        text = f"only paused runs can be resumed; this one is {run.status}"
        raise Conflict(text, code="run_not_paused", run_status=run.status)
    cap = settings.AGENTOPS_MAX_TOTAL_STEPS
    if run.step_count >= cap:
        text = f"the lineage has used all of its {cap} steps"
        raise Conflict(text, code="max_total_steps_exceeded", steps=run.step_count)


def _plan(run: AgentRun, message: str | None, *, append: bool) -> ResumePlan[AgentRun]:
    """Return how to resume a run, by the messages of the runs of its lineage."""
    attempts: list[EarlierAttempt[AgentRun]] = []
    current: AgentRun | None = run
    while current is not None and not any(a.has_session for a in attempts):
        messages = AgentRunMessage.objects.filter(run=current, rolled_back_at=None)
        # A fork has a conversation from the start: that of the run from which it was forked.
        has_session = current.forked_from_id is not None or messages.exists()
        attempts.append(EarlierAttempt(current, has_session))
        current = current.resumed_from
    prompt = creation.text_of_turn(run.root_run.prompt) if run.root_run.prompt is not None else ""
    return plan(message, append=append, attempts=attempts, prompt=prompt)


def _with_media(
    plan: ResumePlan[AgentRun], message: str | None, media: Sequence[creation.Media]
) -> ResumePlan[AgentRun]:
    """Return the plan with media: in the turn of the message; without a message, in place of "continue", or after the
    prompt of a fresh start.
    """
    if not media:
        return plan
    replaces_last_turn = message is not None or plan.mode is Mode.RESUME
    turns = plan.turns[:-1] if replaces_last_turn else plan.turns
    return replace(plan, turns=[*turns, creation.turn_of(message, media)])


def _open_successor(old: AgentRun, plan: ResumePlan[AgentRun], opening: Opening) -> AgentRun:
    """Create the new run. Its first user messages were sent to the paused run. Signals are kept."""
    pending = inbox.pending_commands(old.pk)
    commands = [command for command in pending if command.type in (Type.SEND, Type.REPLY)]
    signals = [command for command in pending if command.type == Type.SIGNAL]
    mark_applied([*commands, *signals])
    opening = replace(opening, turns=[*(command.payload["message"] for command in commands), *plan.turns])
    origin = Origin(
        resumed_from=old,
        parent_run=old.parent_run,
        on_pause=old.on_pause,
        flow_run_id=old.flow_run_id,
        starts_fresh=plan.mode is Mode.FRESH,
    )
    new = creation.open_run(old.project, old.agent, opening, origin)
    inbox.copy_signals(signals, new)
    return new
