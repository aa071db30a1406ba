"""Resume: a paused run goes on as a new one. One function for every door.

May import state and parts. Everything is checked before anything is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.conf import settings
from django.db import transaction

from runs import chaos, creation, inbox, lifecycle, resume_plan
from runs.creation import Opening, Origin
from runs.errors import InvalidInput, MaxTotalStepsExceeded, MessageEmpty, RunNotFound, RunNotPaused
from runs.models import AgentRun, AgentRunMessage
from runs.resume_plan import Earlier, Mode, ResumePlan
from runs.statuses import LIVE, RunStatus
from timeline.events.run import RunResumed
from timeline.models import Source

Type = inbox.Type


@dataclass(frozen=True)
class Resumed:
    """The run that goes on, whether it did so before this call, and what the old one was when it was found."""

    run: AgentRun
    already: bool
    was: RunStatus


def resume(
    run_id: UUID,
    *,
    by: str,
    message: str | None = None,
    append: bool = True,
    max_steps: int | None = None,
    kill: bool = False,
    source: Source = Source.WEB,
    reason: str = "",
) -> Resumed:
    """Continue a paused run as a new one with a fresh step budget; steps and the cap count on.

    Any number of calls at once make one new run: they wait for the lock of the old one's row, and find it
    resumed. `kill`: a live run is taken away from its worker and paused first. `reason`: what made a policy resume
    it, by which its attempts are counted. Raises `RunNotPaused`,
    `MaxTotalStepsExceeded`, `MessageEmpty` or `InvalidMaxSteps`, and then nothing was written.
    """
    check_message(message)
    with transaction.atomic():
        # NO KEY, as for a command: see runs.inbox.
        old = AgentRun.objects.select_for_update(no_key=True, of=("self",)).filter(pk=run_id).first()
        if old is None:
            raise RunNotFound(f"no run {run_id}")
        if old.state is RunStatus.RESUMED:
            return Resumed(AgentRun.objects.get(resumed_from=old), already=True, was=old.state)
        was = old.state
        if kill and was in LIVE:
            _kill(old, by=by)
        _check_resumable(old)
        # The cap may have been lowered since: its old budget is then none that a run may have.
        budget = creation.checked_max_steps(max_steps, default=min(old.max_steps, settings.AGENTOPS_MAX_TOTAL_STEPS))
        new = _go_on(old, _plan(old, message, append=append), by=by, max_steps=budget)
        payload = RunResumed(run_id=str(new.pk), by=by or None, reason=reason or None)
        lifecycle.move(old, RunStatus.RESUMED, payload, source=source, reason=reason)
        chaos.point("CP29")
    return Resumed(new, already=False, was=was)


def _kill(run: AgentRun, *, by: str) -> None:
    """What is asked of it besides is answered by this. What was said to it goes on into the new run."""
    lifecycle.fence(run, by=by)
    inbox.mark_applied(c for c in inbox.pending(run.pk) if c.type in (Type.PAUSE, Type.STOP))


def check_message(message: str | None) -> None:
    if message is not None and not message.strip():
        raise MessageEmpty("an empty message says nothing: leave it out", pointer="/message")
    if message is not None and len(message) > inbox.MAX_MESSAGE:
        raise InvalidInput(f"a message has at most {inbox.MAX_MESSAGE} characters", pointer="/message")


def _check_resumable(run: AgentRun) -> None:
    if run.state is not RunStatus.PAUSED:
        text = f"only paused runs can be resumed; this one is {run.status}"
        raise RunNotPaused(text, run_status=run.status)
    cap = settings.AGENTOPS_MAX_TOTAL_STEPS
    if run.source == AgentRun.Source.NATIVE and run.step_count >= cap:
        text = f"the maximum total steps of {cap} are used up"
        raise MaxTotalStepsExceeded(text, steps=run.step_count)


def _plan(run: AgentRun, message: str | None, *, append: bool) -> ResumePlan[AgentRun]:
    """Ask the pure decision, with the attempts of the lineage from the newest back."""
    attempts: list[Earlier[AgentRun]] = []
    current: AgentRun | None = run
    while current is not None and not any(a.has_session for a in attempts):
        said = AgentRunMessage.objects.filter(run=current, rolled_back_at=None)
        # A fork has one before it says anything: that of the run that it was forked from.
        has_session = current.forked_from_id is not None or said.exists()
        attempts.append(Earlier(current, has_session))
        current = current.resumed_from
    prompt = creation.text_of_turn(run.root_run.prompt) if run.root_run.prompt is not None else ""
    return resume_plan.plan(message, append=append, attempts=attempts, prompt=prompt)


def _go_on(old: AgentRun, plan: ResumePlan[AgentRun], *, by: str, max_steps: int) -> AgentRun:
    """The new run; what was typed while the old one was paused comes first."""
    waiting = [c for c in inbox.pending(old.pk) if c.type in (Type.SEND, Type.REPLY)]
    inbox.mark_applied(waiting)
    opening = Opening(
        config=old.agent_config,
        turns=[*(c.payload["message"] for c in waiting), *plan.turns],
        max_steps=max_steps,
        title=old.title,
        labels=old.labels,
        by=by,
    )
    origin = Origin(resumed_from=old, parent_run=old.parent_run, starts_fresh=plan.mode is Mode.FRESH)
    return creation.open_run(old.project, old.agent, opening, origin)
