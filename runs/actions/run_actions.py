"""The actions on runs for users and programs: create, resume, fork, pause, stop, send, reply, resolve.

Actions that begin or end a run are recorded in the audit log, in the same transaction. The caller has checked the
permission.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from pydantic import JsonValue

from agentops.accounts.audit import Actor, name_of, record
from agentops.accounts.models import Project
from agentops.base.refusals import Conflict, Invalid, Refusal
from runs.actions import agent_definitions, unknown_calls
from runs.actions import fork as forking
from runs.actions import resume as resuming
from runs.actions.resume import ResumeResult
from runs.actions.unknown_calls import OutcomeChoice, Resolution
from runs.errors import MessageEmpty
from runs.lifecycle import creation, inbox, reported_runs
from runs.lifecycle.creation import FrontEndTools, Media, UserTurn
from runs.lifecycle.inbox import PostResult
from runs.lifecycle.reported_runs import ReportedRun
from runs.models import Agent, AgentRun
from runs.providers import loading
from runs.statuses import LIVE, RunStatus
from timeline.models import RunKind


class RunAuditAction(enum.StrEnum):
    RUN_CREATED = "run.created"
    RUN_RESUMED = "run.resumed"
    RUN_FORKED = "run.forked"
    RUN_KILLED = "run.killed"
    RUN_STOPPED = "run.stopped"
    CALL_RESOLVED = "run.call_resolved"
    APPROVAL_DECIDED = "run.approval_decided"
    RUN_DISMISSED = "run.dismissed"


@dataclass(frozen=True)
class BulkOutcome:
    """The result of `resume_many` for one run."""

    run_id: UUID
    #: The run that continues it; None if it was not resumed, or in a dry run.
    resumed_as: UUID | None = None
    #: The code of a refusal, or `already_resumed`; empty if the run was resumed.
    code: str = ""
    reason: str = ""


def create(
    actor: Actor,
    project: Project,
    agent: Agent,
    prompt: UserTurn | None,
    *,
    parent_id: UUID | None = None,
    **options: Any,
) -> AgentRun:
    """Create a queued run. The prompt may be omitted if the agent plays a fixture, which has one.

    `options` are those of runs.lifecycle.creation.create. Raises its errors.
    """
    turn = agent_definitions.recorded_prompt(agent) if prompt is None else prompt
    if turn is None:
        raise MessageEmpty("this agent requires a prompt", pointer="/prompt")

    def write(turn: UserTurn) -> AgentRun:
        with transaction.atomic():
            run = creation.create(project, agent, turn, by=name_of(actor), parent_id=parent_id, **options)
            after = {"status": run.status, "agent_id": agent.slug, "max_steps": run.max_steps}
            if parent_id is not None:
                after["parent_run_id"] = str(parent_id)
            record(actor, RunAuditAction.RUN_CREATED, project=project, obj=run, after=after)
        return run

    return loading.repeating(partial(write, turn))


def open_external(
    actor: Actor,
    project: Project,
    *,
    external_id: str | None,
    agent: str,
    title: str,
    prompt: str | None,
    parent_run_id: UUID | None,
    run_kind: str,
    labels: Sequence[str],
) -> AgentRun:
    """Create an external run, whose runner sends the events.

    Raises `Conflict` with the code `external_id_conflict`, and `Invalid` if the parent is not possible.
    """
    _refuse_taken(project, external_id)
    reported = ReportedRun(
        external_id=external_id,
        agent=agent,
        title=title,
        prompt=prompt or "",
        run_kind=RunKind(run_kind),
        labels=labels,
        by=name_of(actor),
    )
    try:
        with transaction.atomic():
            parent = creation.lock_parent(project, parent_run_id) if parent_run_id is not None else None
            run = reported_runs.open_run(project, replace(reported, parent=parent))
            if parent is not None:
                creation.add_child_event(parent, run)
            after = {"status": run.status, "agent_id": agent, "source": run.source_name}
            record(actor, RunAuditAction.RUN_CREATED, project=project, obj=run, after=after)
    except IntegrityError:
        # A concurrent request has created the run.
        _refuse_taken(project, external_id)
        raise
    return run


def _refuse_taken(project: Project, external_id: str | None) -> None:
    """Raise `Conflict` if the project has a run with this external ID."""
    known = reported_runs.id_of_external(project, external_id) if external_id is not None else None
    if known is not None:
        raise Conflict(
            f"the project has a run with the external ID {external_id!r}",
            code="external_id_conflict",
            run_id=str(known),
        )


def resume(
    actor: Actor,
    run: AgentRun,
    *,
    message: str | None = None,
    media: Sequence[Media] = (),
    append: bool = True,
    max_steps: int | None = None,
    kill: bool = False,
    front_end_tools: FrontEndTools | None = None,
) -> ResumeResult:
    """Continue a paused run as a new one: see runs.actions.resume."""
    with transaction.atomic():
        result = resuming.resume(
            run.pk,
            by=name_of(actor),
            message=message,
            media=media,
            append=append,
            max_steps=max_steps,
            kill=kill,
            front_end_tools=front_end_tools,
        )
        if result.is_existing:
            return result
        paused = {"status": RunStatus.PAUSED.value}
        if result.status_before in LIVE:
            before = _status(result.status_before)
            record(actor, RunAuditAction.RUN_KILLED, project=run.project, obj=run, before=before, after=paused)
        after = {"status": RunStatus.RESUMED.value, "resumed_as": str(result.run.pk)}
        record(actor, RunAuditAction.RUN_RESUMED, project=run.project, obj=run, before=paused, after=after)
    return result


def fork(
    actor: Actor,
    run: AgentRun,
    *,
    step: int | None = None,
    checkpoint_id: UUID | None = None,
    message: str | None = None,
    media: Sequence[Media] = (),
    agent: Mapping[str, Any] | None = None,
    front_end_tools: FrontEndTools | None = None,
) -> AgentRun:
    """Create a run from a checkpoint of this one: see runs.actions.fork."""
    with transaction.atomic():
        new = forking.fork(
            run.pk,
            by=name_of(actor),
            step=step,
            checkpoint_id=checkpoint_id,
            message=message,
            media=media,
            agent=agent,
            front_end_tools=front_end_tools,
        )
        after = {
            "status": new.status,
            "forked_from": str(new.forked_from_id),
            "forked_at_step": new.forked_at_step,
            "edited": sorted(agent or {}),
        }
        record(actor, RunAuditAction.RUN_FORKED, project=run.project, obj=new, after=after)
    return new


def resume_many(actor: Actor, runs: Iterable[AgentRun], *, dry_run: bool = False, **options: Any) -> list[BulkOutcome]:
    """Resume each run separately, in a fixed order, and return the outcomes. A refused run does not stop the others.

    `options` are those of `resume`. Raises `Invalid` for a message or a budget that is invalid for every run.
    """
    return [_resume_one(actor, run, options, dry_run=dry_run) for run in sorted(runs, key=lambda run: run.pk)]


def _resume_one(actor: Actor, run: AgentRun, options: dict[str, Any], *, dry_run: bool) -> BulkOutcome:
    """Resume one run of many, and return its outcome. Raises `Invalid`."""
    try:
        with transaction.atomic():
            result = resume(actor, run, **options)
            if dry_run:
                # Do everything, and then roll back.
                transaction.set_rollback(True)
    except Invalid:
        raise
    except Refusal as refusal:
        return BulkOutcome(run.pk, code=refusal.code, reason=str(refusal))
    if result.is_existing:
        return BulkOutcome(run.pk, result.run.pk, "already_resumed", f"already continued by {result.run.pk}")
    return BulkOutcome(run.pk, None if dry_run else result.run.pk)


def pause(actor: Actor, run: AgentRun, *, key: str | None = None) -> PostResult:
    """Pause the run after its current step."""
    return inbox.pause(run.pk, by=name_of(actor), key=key)


def stop(actor: Actor, run: AgentRun, *, key: str | None = None) -> PostResult:
    """Stop the run, at once if no worker holds it."""
    with transaction.atomic():
        posted = inbox.stop(run.pk, by=name_of(actor), key=key)
        if posted.is_new:
            before, after = _status(posted.status_before), {"status": posted.run.status, "asked": "stop"}
            record(actor, RunAuditAction.RUN_STOPPED, project=run.project, obj=run, before=before, after=after)
    return posted


def send(actor: Actor, run: AgentRun, message: str, *, key: str | None = None) -> PostResult:
    """Send a message, delivered before the next model call."""
    return inbox.send(run.pk, message, by=name_of(actor), key=key)


def reply(actor: Actor, run: AgentRun, message: str, *, key: str | None = None) -> PostResult:
    """Answer the question that the run waits for."""
    return inbox.reply(run.pk, message, by=name_of(actor), key=key)


def signal(actor: Actor, run: AgentRun, name: str, value: JsonValue, *, key: str | None = None) -> PostResult:
    """Send a signal to a remote run."""
    return inbox.signal(run.pk, name, value, by=name_of(actor), key=key)


def resolve_call(
    actor: Actor, run: AgentRun, call_id: UUID, choice: OutcomeChoice, *, text: str | None = None
) -> Resolution:
    """Resolve the unknown outcome of a call: see runs.actions.unknown_calls."""
    with transaction.atomic():
        resolution = unknown_calls.resolve(run.pk, call_id, choice, by=name_of(actor), text=text)
        if resolution.is_new:
            after = {"call": str(call_id), "tool_name": resolution.call.tool_name, "choice": choice.value}
            before = _status(resolution.status_before) | {"call_status": "unknown"}
            record(actor, RunAuditAction.CALL_RESOLVED, project=run.project, obj=run, before=before, after=after)
    return resolution


def _status(status: RunStatus) -> dict[str, str]:
    return {"status": status.value}
