"""The inbox of a project: the tool calls that wait for approval, and the questions of agents, the oldest first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from uuid_utils.compat import uuid7

from agentops.http.methods import require_safe
from agentops.projects.access import Action, enter
from agentops.projects.models import Project
from agentops.projects.requests import principal_of
from runs.actions import approvals
from runs.lifecycle import questions
from runs.models import AgentRun
from runs.pages.approvals.shown_approval import shown
from runs.pages.run.banner import AgentQuestion, newest_event
from runs.pages.run.waits import question_of
from runs.pages.timeline.cards import LINE
from runs.statuses import RunStatus, WaitReason
from timeline.display import clip
from timeline.events import EventType

#: Maximum entries of the page; more appear when these are decided.
MAX_APPROVALS, MAX_QUESTIONS = 50, 50
#: Maximum entries of a menu.
MAX_CHOICES = 200


@dataclass(frozen=True)
class WaitingQuestion:
    """A run that waits for an answer."""

    run_id: UUID
    run_title: str
    question: AgentQuestion
    asked_at: datetime | None
    #: Idempotency key: a double click answers once.
    key: UUID


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show what waits for a person."""
    entry = enter(principal_of(request), project, Action.READ)
    may_decide = Action.APPROVE in entry.actions
    pending = list(approvals.pending([entry.project.pk])[: MAX_APPROVALS + 1])
    asked = _questions(entry.project)
    context = {
        "project": entry.project,
        "projects": entry.visible.order_by("name", "pk")[:MAX_CHOICES],
        "may_manage": Action.MANAGE in entry.actions,
        "may_decide": may_decide,
        "approvals": [shown(approval, may_decide=may_decide) for approval in pending[:MAX_APPROVALS]],
        "has_more": len(pending) > MAX_APPROVALS or len(asked) > MAX_QUESTIONS,
        "questions": asked[:MAX_QUESTIONS],
    }
    return render(request, "runs/approvals.html", context)


def _questions(project: Project) -> list[WaitingQuestion]:
    waiting = AgentRun.objects.filter(
        project=project, status=RunStatus.WAITING, status_reason=WaitReason.INPUT, source=AgentRun.Source.NATIVE
    ).order_by("pk")
    found = []
    for run in waiting[: MAX_QUESTIONS + 1]:
        pending = questions.open_question(run)
        if pending is not None:
            event = newest_event(run.pk, EventType.RUN_WAITING)
            title = clip(run.title, LINE).text or "(untitled)"
            found.append(
                WaitingQuestion(run.pk, title, question_of(pending), event.ts if event else None, uuid7())
            )  # fmt: skip
    return found
