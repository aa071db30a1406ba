"""The inbox: the tool calls that wait for approval, and the questions of agents, the oldest first.

Of one project, or of all that a person may see.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from uuid_utils.compat import uuid7

from agentops.http.methods import require_safe
from agentops.projects.access import ANONYMOUS, Action, allowed_pairs, enter, projects_for
from agentops.projects.errors import AuthRequired
from agentops.projects.models import Project
from agentops.projects.requests import principal_of
from runs.actions import approvals
from runs.lifecycle import questions
from runs.models import AgentRun
from runs.pages.approvals.shown_approval import ShownApproval, shown
from runs.pages.run.banner import AgentQuestion, newest_event
from runs.pages.run.waits import question_of
from runs.pages.timeline.cards import LINE
from runs.statuses import RunStatus, WaitReason
from timeline.display import clip
from timeline.events import EventType
from timeline.redaction import project_scope

#: Maximum entries of the page; more appear when these are decided.
MAX_APPROVALS, MAX_QUESTIONS = 50, 50
#: Maximum entries of a menu.
MAX_CHOICES = 200


@dataclass(frozen=True)
class WaitingQuestion:
    """A run that waits for an answer."""

    run_id: UUID
    run_title: str
    project: Project
    question: AgentQuestion
    asked_at: datetime | None
    may_answer: bool
    #: Idempotency key: a double click answers once.
    key: UUID


@dataclass(frozen=True)
class WaitingItems:
    """What waits for a person."""

    approvals: list[ShownApproval]
    questions: list[WaitingQuestion]
    has_more: bool


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show what waits for a person in a project."""
    entry = enter(principal_of(request), project, Action.READ)
    may_decide = Action.APPROVE in entry.actions
    context = {
        "project": entry.project,
        "projects": entry.visible.order_by("name", "pk")[:MAX_CHOICES],
        "may_manage": Action.MANAGE in entry.actions,
        "may_decide": may_decide,
        "waiting": _waiting([entry.project], {entry.project.pk} if may_decide else set()),
        "next": "inbox",
    }
    return render(request, "runs/approvals.html", context)


@require_safe
def everything(request: HttpRequest) -> HttpResponse:
    """Show what waits for a person in all projects that the user may see."""
    principal = principal_of(request)
    if principal == ANONYMOUS:
        raise AuthRequired
    projects = list(projects_for(principal).order_by("name", "pk"))
    pairs = allowed_pairs([(principal, project.pk) for project in projects], Action.APPROVE)
    for project in projects:
        project_scope.add(project.pk)
    context = {
        "may_decide": bool(pairs),
        "waiting": _waiting(projects, {project_id for _, project_id in pairs}),
        "next": "all",
    }
    return render(request, "runs/approvals.html", context)


def _waiting(projects: Sequence[Project], decidable: Collection[UUID]) -> WaitingItems:
    """Return what waits in these projects. `decidable`: those in which the user may decide."""
    ids = [project.pk for project in projects]
    pending = list(approvals.pending(ids)[: MAX_APPROVALS + 1])
    asking = AgentRun.objects.filter(
        project__in=ids, status=RunStatus.WAITING, status_reason=WaitReason.INPUT, source=AgentRun.Source.NATIVE
    ).select_related("project").order_by("pk")  # fmt: skip
    asked = list(asking[: MAX_QUESTIONS + 1])
    return WaitingItems(
        [shown(approval, may_decide=approval.project_id in decidable) for approval in pending[:MAX_APPROVALS]],
        [*_questions(asked[:MAX_QUESTIONS], decidable)],
        has_more=len(pending) > MAX_APPROVALS or len(asked) > MAX_QUESTIONS,
    )


def _questions(runs: Iterable[AgentRun], decidable: Collection[UUID]) -> Iterator[WaitingQuestion]:
    for run in runs:
        pending = questions.open_question(run)
        if pending is not None:
            event = newest_event(run.pk, EventType.RUN_WAITING)
            title = clip(run.title, LINE).text or "(untitled)"
            may_answer = run.project_id in decidable
            asked_at = event.ts if event else None
            yield WaitingQuestion(run.pk, title, run.project, question_of(pending), asked_at, may_answer, uuid7())
