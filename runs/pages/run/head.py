"""The head of a run's page as one reader sees it: what it is, what to know, what they may do to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse
from uuid_utils.compat import uuid7

from agentops.projects.access import Action, Principal, may
from runs.lifecycle import inbox
from runs.models import AgentRun, AgentRunMessage, RunCommand
from runs.pages.run.banner import Banner
from runs.pages.run.banners import banners_of, wishes_of
from runs.pages.run.facts import Loaded, has_errors
from runs.pages.run.lineage import Lineage, lineage_of
from runs.statuses import LIVE, RunStatus, WaitReason
from timeline.shown import clean, clip

#: No event tells, because nobody is there to write one, that a worker is gone or that none comes.
LOOK_S = 15
#: Ours has at most 500 characters; a runner elsewhere may send more.
SUMMARY_BYTES = 2048
NOT_ALLOWED = "This needs the role operator or admin."
ELSEWHERE = "It is executed elsewhere; this is only its record."


@dataclass(frozen=True)
class ActionRefusals:
    """Why each action cannot be done now; empty where it can."""

    resume: str
    pause: str
    stop: str
    send: str
    #: Say what came of a call.
    resolve: str = ""


@dataclass(frozen=True)
class ResumeOffer:
    """What a resume would do, said before the click."""

    step: int
    budget: int
    limit: int
    cap: int
    #: Whether there is a conversation to go on in.
    has_session: bool


@dataclass(frozen=True)
class Head:
    run: AgentRun
    title: str
    agent: Mapping[str, str]
    reason: str
    #: Of what came of it, in a paragraph; empty while nothing has.
    summary: str
    lineage: Lineage
    banners: Sequence[Banner]
    no: ActionRefusals
    offer: ResumeOffer | None
    #: Why it cannot be forked; empty where it can.
    no_fork: str
    #: Makes a message that is sent twice by a double click arrive once.
    send_key: UUID
    has_errors: bool
    #: How often to look again; None where nothing changes any more.
    look_s: int | None
    commands: list[tuple[str, str]]


def head_of(request: HttpRequest, principal: Principal, found: Loaded) -> Head:
    run = found.run
    wishes, lineage = wishes_of(run), lineage_of(run)
    no = _refusals(run, wishes, allowed=may(principal, Action.OPERATE, run.project_id))
    return Head(
        run=run,
        title=clean(run.title) or "(without a title)",
        agent=found.agent,
        reason=clean(run.status_reason.replace("_", " ")),
        summary=clip(run.summary, SUMMARY_BYTES).text,
        lineage=lineage,
        banners=banners_of(found, lineage, wishes),
        no=no,
        offer=None if no.resume else _offer(run),
        no_fork=_why_not_fork(run, allowed=may(principal, Action.OPERATE, run.project_id)),
        send_key=uuid7(),
        has_errors=has_errors(found),
        look_s=None if run.state.terminal else LOOK_S,
        commands=_commands(request, run),
    )


def _refusals(run: AgentRun, wishes: Sequence[RunCommand], *, allowed: bool) -> ActionRefusals:
    if not allowed or run.source != AgentRun.Source.NATIVE:
        why = NOT_ALLOWED if not allowed else ELSEWHERE
        return ActionRefusals(why, why, why, why, why)
    asked = {wish.type for wish in wishes}
    over = f"This run is over: it is {run.status}." if run.state.terminal else ""
    return ActionRefusals(
        resume=_why_not_resume(run),
        pause=over or _why_not_pause(run, asked),
        stop=over or ("It was asked to stop already." if inbox.Type.STOP in asked else ""),
        send=over,
    )


def _why_not_resume(run: AgentRun) -> str:
    if run.state is RunStatus.RESUMED:
        return "It was resumed already."
    if run.state is not RunStatus.PAUSED:
        return f"Only a paused run can be resumed; this one is {run.status}."
    cap = settings.AGENTOPS_MAX_TOTAL_STEPS
    return f"All {cap} steps that a lineage may have are used up." if run.step_count >= cap else ""


def _why_not_pause(run: AgentRun, asked: set[str]) -> str:
    if run.state not in LIVE:
        return "It is paused."
    return "It was asked to pause already." if inbox.Type.PAUSE in asked else ""


def _why_not_fork(run: AgentRun, *, allowed: bool) -> str:
    if not allowed:
        return NOT_ALLOWED
    return "" if run.step_count else "It has made no step yet."


def _offer(run: AgentRun) -> ResumeOffer:
    cap = settings.AGENTOPS_MAX_TOTAL_STEPS
    said = AgentRunMessage.objects.filter(run__root_run=run.root_run_id, rolled_back_at=None)
    forked = AgentRun.objects.filter(pk=run.root_run_id, forked_from__isnull=False)
    limit = min(run.step_count + run.max_steps, cap)
    return ResumeOffer(run.step_count + 1, run.max_steps, limit, cap, said.exists() or forked.exists())


def _commands(request: HttpRequest, run: AgentRun) -> list[tuple[str, str]]:
    """The same on a command line: what can be copied from the page."""
    stream = reverse("api:events-stream", args=[run.project.slug, run.pk])
    url = request.build_absolute_uri(stream)
    found = [("Show", f"agentops agent show {run.pk}"), ("Follow", f"agentops agent tail {run.pk}")]
    if run.state is RunStatus.PAUSED:
        found.append(("Resume", f"agentops agent resume {run.pk}"))
    if run.step_count:
        found.append(("Fork", f"agentops agent fork {run.pk} --step {run.step_count}"))
    if run.status_reason == WaitReason.UNKNOWN_TOOL:
        found.append(("Say what came of its call", f"agentops agent outcome {run.pk} CALL --done OUTPUT"))
    if run.state in LIVE:
        found.append(("Pause", f"agentops agent pause {run.pk}"))
    if not run.state.terminal:
        found += [
            ("Stop", f"agentops agent stop {run.pk}"),
            ("Send a message", f"agentops agent send {run.pk} MESSAGE"),
        ]
    return [*found, ("Its events with curl", f'curl -N -H "Authorization: Bearer $AGENTOPS_KEY" "{url}"')]
