"""The header of a run page for one user: title, banners and available actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from django.conf import settings
from django.http import HttpRequest
from uuid_utils.compat import uuid7

from agentops.accounts.access import Action, Principal, actions_of
from runs.lifecycle import inbox, session_subagents
from runs.models import AgentRun, AgentRunMessage, RunCommand
from runs.pages.commands import ActionCommand, action_commands, approval_command, outcome_command, stream_command
from runs.pages.run.banner import Banner
from runs.pages.run.banners import banners_of, pending_commands
from runs.pages.run.facts import RunData, has_errors
from runs.pages.run.lineage import Cascade, Lineage, cascade_of, lineage_of
from runs.statuses import LIVE, RunStatus
from timeline.display import clean, clip

#: Seconds between reloads of the header: a lost or missing worker writes no event.
POLL_SECONDS = 15
#: The interval for a run with child runs: its log has no events about the waits of child runs.
PARENT_POLL_SECONDS = 5
#: Maximum bytes of a summary: agents write at most 500 characters, external runners may send more.
SUMMARY_BYTES = 2048
#: Reasons why an action is unavailable.
NOT_ALLOWED = "Requires the role operator or admin."
EXTERNAL = "This run is executed by an external runner and cannot be controlled here."


@dataclass(frozen=True)
class ActionRefusals:
    """The reason why each action is unavailable; empty if it is available."""

    resume: str
    pause: str
    stop: str
    send: str
    #: Of decisions about tool calls: approve, deny, and resolve an unknown outcome.
    resolve: str = ""


@dataclass(frozen=True)
class ResumeOffer:
    """The effect of a resume, for display before the click."""

    #: The first step of the new run.
    step: int
    #: The steps that the new run adds.
    budget: int
    #: The last step that the new run may take.
    limit: int
    #: The last step of any lineage of the site.
    cap: int
    #: Whether there is a conversation to continue.
    has_session: bool


@dataclass(frozen=True)
class Head:
    """The header of a run page for its template."""

    run: AgentRun
    title: str
    agent: Mapping[str, str]
    #: The summary of the result; empty without a result.
    summary: str
    lineage: Lineage
    banners: Sequence[Banner]
    #: Why the run waits or is paused, with the forms to end it. Appears at the live end of the timeline.
    waits: Sequence[Banner]
    refusals: ActionRefusals
    child_count: int
    #: The runs that a stop or a pause also affects.
    cascade: Cascade
    resume_offer: ResumeOffer | None
    #: Why the run cannot be forked; empty if it can.
    fork_refusal: str
    #: Idempotency key: a double click sends a message once.
    send_key: UUID
    has_errors: bool
    #: Whether the user manages the project.
    may_manage: bool
    #: The user's permissions in the project.
    actions: frozenset[Action]
    #: Seconds between reloads; None for a run that has ended.
    poll_seconds: int | None
    #: Labels and shell commands that read the run.
    commands: list[tuple[str, str]]
    #: The equivalent commands of each button, by action.
    action_commands: Mapping[str, ActionCommand]
    #: Labels and reasons of unavailable actions.
    unavailable: list[tuple[str, str]]


def head_of(request: HttpRequest, principal: Principal, data: RunData) -> Head:
    """Return the header of a run page as `principal` sees it."""
    run = data.run
    pending, lineage = pending_commands(run), lineage_of(run)
    actions = actions_of(principal, run.project_id)
    refusals = refusals_of(run, pending, allowed=Action.OPERATE in actions)
    fork_refusal = _why_not_fork(run, allowed=Action.OPERATE in actions)
    banners = [_for_user(request, run, banner, refusals) for banner in banners_of(data, lineage, pending)]
    return Head(
        run=run,
        title=clean(run.title) or "(untitled)",
        agent=data.agent,
        summary=clip(run.summary, SUMMARY_BYTES).text,
        lineage=lineage,
        banners=[banner for banner in banners if not banner.is_wait],
        waits=[banner for banner in banners if banner.is_wait],
        refusals=refusals,
        child_count=data.child_count,
        cascade=cascade_of(run) if data.child_count else Cascade(),
        resume_offer=None if refusals.resume else _resume_offer(run),
        fork_refusal=fork_refusal,
        send_key=uuid7(),
        has_errors=has_errors(data),
        may_manage=Action.MANAGE in actions,
        actions=actions,
        poll_seconds=_poll_seconds(data),
        commands=_commands(request, run),
        action_commands=action_commands(request, run),
        unavailable=_unavailable_actions(run, refusals, fork_refusal),
    )


def _poll_seconds(data: RunData) -> int | None:
    if data.run.state.terminal:
        return None
    return PARENT_POLL_SECONDS if data.child_count else POLL_SECONDS


def _unavailable_actions(run: AgentRun, refusals: ActionRefusals, fork_refusal: str) -> list[tuple[str, str]]:
    """Return the labels of unavailable actions, each with the reason."""
    reasons = [
        ("Resume", refusals.resume),
        ("Pause", refusals.pause),
        ("Send message", refusals.send),
        ("Stop recording" if run.is_recorded else "Stop", refusals.stop),
        ("Fork", fork_refusal),
    ]
    return [(label, reason) for label, reason in reasons if reason]


def _for_user(request: HttpRequest, run: AgentRun, banner: Banner, refusals: ActionRefusals) -> Banner:
    """Return a banner, which is the same for all users, with the permission of this user and equivalent commands."""
    calls = [replace(call, command=outcome_command(request, run, call.id)) for call in banner.calls]
    approval = banner.approval
    if approval is None:
        return replace(banner, calls=calls)
    command = approval_command(request, run, approval.call_id)
    approval = replace(approval, may_decide=not refusals.resolve)
    return replace(banner, calls=calls, approval=approval, approval_command=command)


def refusals_of(run: AgentRun, pending: Sequence[RunCommand], *, allowed: bool) -> ActionRefusals:
    """Return why each action is unavailable.

    `pending` are the commands in the run's inbox. `allowed`: whether the user may operate the run.
    """
    ended = f"The run has ended: it is {run.status}." if run.state.terminal else ""
    if not allowed:
        return ActionRefusals(NOT_ALLOWED, NOT_ALLOWED, NOT_ALLOWED, NOT_ALLOWED, NOT_ALLOWED)
    if session_subagents.is_subagent(run):
        # The run of a sub-agent ends with its session. Only its calls are decided here.
        return ActionRefusals(EXTERNAL, EXTERNAL, EXTERNAL, EXTERNAL)
    if run.is_recorded:
        return ActionRefusals(EXTERNAL, EXTERNAL, ended, EXTERNAL, EXTERNAL)
    requested = {command.type for command in pending}
    return ActionRefusals(
        resume=_why_not_resume(run),
        pause=ended or _why_not_pause(run, requested),
        stop=ended or ("Stop already requested." if inbox.Type.STOP in requested else ""),
        send=ended,
    )


def _why_not_resume(run: AgentRun) -> str:
    """Return why a run cannot be resumed; empty if it can."""
    if run.state is RunStatus.RESUMED:
        return "This run was already resumed."
    if run.state is not RunStatus.PAUSED:
        return f"Only a paused run can be resumed. This run is {run.status}."
    cap = settings.AGENTOPS_MAX_TOTAL_STEPS
    return f"The lineage has used all of its {cap} steps." if run.step_count >= cap else ""


def _why_not_pause(run: AgentRun, requested: set[str]) -> str:
    if run.state not in LIVE:
        return "This run is already paused."
    return "Pause already requested." if inbox.Type.PAUSE in requested else ""


def _why_not_fork(run: AgentRun, *, allowed: bool) -> str:
    """Return why a run cannot be forked; empty if it can."""
    if not allowed:
        return NOT_ALLOWED
    if run.is_recorded:
        return "An external run has no checkpoints to fork from."
    return "" if run.step_count else "This run has not completed a step yet."


def _resume_offer(run: AgentRun) -> ResumeOffer:
    cap = settings.AGENTOPS_MAX_TOTAL_STEPS
    conversation = AgentRunMessage.objects.filter(run__root_run=run.root_run_id, rolled_back_at=None)
    forked = AgentRun.objects.filter(pk=run.root_run_id, forked_from__isnull=False)
    limit = min(run.step_count + run.max_steps, cap)
    return ResumeOffer(run.step_count + 1, run.max_steps, limit, cap, conversation.exists() or forked.exists())


def _commands(request: HttpRequest, run: AgentRun) -> list[tuple[str, str]]:
    """Return labels and shell commands that read the run. The buttons have the commands that change it."""
    commands = [("Show", f"agentops run show {run.pk}"), ("Follow", f"agentops run tail {run.pk}")]
    if run.step_count:
        commands.append(("Record as a fixture", f"agentops record_fixtures --run {run.pk} --output fixtures"))
    return [*commands, ("Stream events with curl", stream_command(request, run))]
