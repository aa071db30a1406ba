"""The inbox: runs, tool calls and questions that need a person, oldest first, of one project or of all projects."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from agentops.accounts import notifications
from agentops.accounts.access import ANONYMOUS, Action, allowed_pairs, projects_for
from agentops.accounts.errors import AuthRequired
from agentops.accounts.models import Project
from agentops.accounts.requests import principal_of
from agentops.base import database_clock
from agentops.base.http.methods import require_safe
from agentops.base.redaction import project_scope
from agentops.base.refusals import InvalidQuery
from runs.lifecycle.questions import question_in
from runs.models import AgentRun, FlowRun
from runs.pages.page_parts import MAX_CHOICES, enter_project, project_context, split_page
from runs.pages.run.any_run import address_of
from runs.pages.run.banner import (
    RESUME_EFFECTS,
    AgentQuestion,
    OpenCall,
    ShownApproval,
    executor,
    reason_text,
    shown_approval,
)
from runs.pages.run.waits import external_wait, open_call, question_of
from runs.pages.timeline.cards import LINE
from runs.queries.needs import FAILED_FOR, Need, NeedKind, NeedPosition, needs
from runs.queries.run_lists.run_order import ListPosition
from runs.queries.waiting_for_people import WaitingItem
from runs.statuses import PauseReason, RunStatus
from timeline.display import clean, clip

#: Maximum bytes of an error message.
ERROR_BYTES = 400
#: Kind of an entry → its title, the label of its badge, and the status that sets the colour and icon of the badge.
KINDS = {
    NeedKind.APPROVAL: ("Approvals", "approval", "waiting"),
    NeedKind.QUESTION: ("Questions", "question", "waiting"),
    NeedKind.UNKNOWN_OUTCOME: ("Unknown outcomes", "unknown outcome", "unknown"),
    NeedKind.SESSION: ("Sessions", "session", "waiting"),
    NeedKind.PAUSED: ("Paused", "paused", "paused"),
    NeedKind.FAILED: ("Failed", "failed", "failed"),
    NeedKind.STALLED: ("Stalled", "stalled", "alert"),
}
#: Status of a stalled run → what is wrong.
_STALLS = {
    RunStatus.QUEUED: "No worker takes it: it is the oldest in the queue. Check that a worker is running.",
    RunStatus.RUNNING: "Its worker is gone, and no other has taken over. Check that a worker is running.",
}
#: The same of a remote run.
_REMOTE_STALLS = {
    RunStatus.QUEUED: "No process takes it. Its page says which process it needs.",
    RunStatus.RUNNING: "Its process is gone, and no other has taken over. Check that one with its code is running.",
}
#: Prefixes of the labels that show where a session runs.
_PLACES = ("host:", "folder:", "branch:")
_FLOW_STALL = "No worker takes its next step. Check that a worker is running."
_FLOW_RESUME = "Resuming enters each open node again, in its own conversation. Nodes that are done do not run again."
_SILENT = "Its runner has stopped sending events. It is executed elsewhere, and cannot be resumed here."


@dataclass(frozen=True)
class NeedEntry:
    """An entry for its template. An entry about a tool call has exactly one of `approval`, `question` and `call`."""

    #: The ID of the approval, tool call, run or flow run. Also the idempotency key of the form that answers a question.
    id: UUID
    #: The label of the badge, and the status that sets its colour and icon.
    word: str
    status: str
    run_id: UUID
    run_title: str
    #: The agent or the flow.
    agent: str
    #: "run" or "flow run".
    noun: str
    #: The page of the run, and the targets of the forms.
    page_url: str
    resume_url: str
    dismiss_url: str
    project: Project
    since: datetime
    expires_at: datetime | None
    may_decide: bool
    #: Why the run needs a person, in a few words; for a tool call, its tool or its question.
    reason: str = ""
    #: Further text, which may be untrusted, such as an error message.
    quote: str = ""
    #: The effect of resuming, or why it is not possible.
    resume_note: str = ""
    may_resume: bool = False
    may_dismiss: bool = False
    #: The noun for what executes the run.
    executor: str = "worker"
    #: Whether the person must act where the program of the run is executed.
    is_elsewhere: bool = False
    #: Labels that say where that is.
    labels: Sequence[str] = ()
    approval: ShownApproval | None = None
    question: AgentQuestion | None = None
    call: OpenCall | None = None


def entry_of(need: Need, *, may_decide: bool) -> NeedEntry:
    """Return the entry of a need, with forms if the user may decide."""
    run, kind = need.run, need.kind
    _, word, status = KINDS[kind]
    is_flow = isinstance(run, FlowRun)
    is_escalated = kind is NeedKind.PAUSED and run.status_reason == PauseReason.ESCALATED
    common = {
        "id": need.id,
        "word": "escalated" if is_escalated else word,
        "status": status,
        "run_id": run.pk,
        "run_title": clip(_title_of(run), LINE).text or "(untitled)",
        "agent": clean(_agent_of(run)),
        "noun": "flow run" if is_flow else "run",
        "page_url": address_of(run),
        "resume_url": reverse("runs:resume-flow-run" if is_flow else "runs:resume", args=[run.pk]),
        "dismiss_url": reverse("runs:dismiss-flow-run" if is_flow else "runs:dismiss", args=[run.pk]),
        "project": run.project,
        "since": need.since,
        "expires_at": need.item.expires_at if need.item is not None else None,
        "may_decide": may_decide,
    }
    if need.item is not None:
        parts = _of_call(kind, need.item, may_decide)
    else:
        parts = _of_flow_run(kind, run) if isinstance(run, FlowRun) else _of_run(kind, run)
    return NeedEntry(**common, **parts)  # type: ignore[arg-type]


def _title_of(run: AgentRun | FlowRun) -> str:
    return (run.name or "Deleted flow") if isinstance(run, FlowRun) else run.title


def _agent_of(run: AgentRun | FlowRun) -> str:
    if isinstance(run, FlowRun):
        return f"flow {run.flow.slug}" if run.flow is not None else ""
    return str(run.agent_config.get("agent_id") or "")


def _of_call(kind: NeedKind, item: WaitingItem, may_decide: bool) -> dict[str, object]:
    """Return the fields of an entry that depend on its tool call."""
    if item.approval is not None:
        approval = shown_approval(item.approval, may_decide=may_decide)
        return {"approval": approval, "reason": approval.tool}
    if kind is NeedKind.QUESTION:
        question = question_of(question_in(item.run, item.call))
        return {"question": question, "reason": clip(question.text.strip().partition("\n")[0], LINE).text}
    call = open_call(item.call)
    return {"call": call, "reason": call.name, "executor": executor(item.run)}


def _of_flow_run(kind: NeedKind, flow_run: FlowRun) -> dict[str, object]:
    """Return the fields of an entry that depend on what happened to the flow run."""
    if kind is NeedKind.PAUSED:
        return {"reason": reason_text(flow_run.status_reason), "resume_note": _FLOW_RESUME, "may_resume": True}
    if kind is NeedKind.FAILED:
        error = clip(flow_run.error_message, ERROR_BYTES).text
        return {"reason": reason_text(flow_run.error_type), "quote": error, "may_dismiss": True}
    return {"reason": _FLOW_STALL}


def _of_run(kind: NeedKind, run: AgentRun) -> dict[str, object]:
    """Return the fields of an entry that depend on what happened to the run."""
    if kind is NeedKind.STALLED:
        is_silent = run.source != AgentRun.Source.NATIVE
        stalls = _REMOTE_STALLS if run.is_remote else _STALLS
        return {"reason": _SILENT if is_silent else stalls.get(run.state, ""), "may_dismiss": is_silent}
    if kind is NeedKind.SESSION:
        what, where = external_wait(run)
        labels = [clean(label) for label in run.labels if label.startswith(_PLACES)]
        return {"reason": f"{what}.", "quote": where, "may_dismiss": True, "is_elsewhere": True, "labels": labels}
    error = {"quote": clip(run.error_message, ERROR_BYTES).text}
    if kind is NeedKind.FAILED:
        return {"reason": reason_text(run.error_type) if run.error_type else "", "may_dismiss": True, **error}
    cap = settings.AGENTOPS_MAX_TOTAL_STEPS
    may_resume, steps = run.step_count < cap, min(run.max_steps, cap - run.step_count)
    note = (
        f"Resuming continues after step {run.step_count} with up to {steps} more step{'' if steps == 1 else 's'}."
        if may_resume
        else f"It has used all {cap} steps and cannot be resumed. Stop it, or fork it on its page."
    )
    if may_resume and (effect := RESUME_EFFECTS.get(run.status_reason)):
        note = f"{note} {effect}"
    reason = "" if run.status_reason == PauseReason.ESCALATED else reason_text(run.status_reason)
    return {"reason": reason, "resume_note": note, "may_resume": may_resume, **error}


#: Maximum entries of a page.
PAGE_SIZE = 50
#: The values of the query parameter `kind`, and their labels.
_KINDS = (("", "All"), *((kind.value, title) for kind, (title, _, _) in KINDS.items()))


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show the entries of a project that wait for a person."""
    principal, entry = enter_project(request, project, Action.READ)
    may_decide = Action.APPROVE in entry.actions
    context = {
        **project_context(entry),
        "may_decide": may_decide,
        "unread": notifications.unread_count(entry.project.pk, principal.user_id) if principal.user_id else 0,
        **_page(request, "inbox", [entry.project], {entry.project.pk} if may_decide else set()),
    }
    return render(request, "runs/approvals/approvals.html", context)


@require_safe
def everything(request: HttpRequest) -> HttpResponse:
    """Show the entries that wait for a person in all projects that the user may see."""
    principal = principal_of(request)
    if principal == ANONYMOUS:
        raise AuthRequired
    projects = list(projects_for(principal).order_by("name", "pk"))
    pairs = allowed_pairs([(principal, project.pk) for project in projects], Action.APPROVE)
    for project in projects:
        project_scope.add(project.pk)
    context = {
        "projects": projects[:MAX_CHOICES],
        "may_decide": bool(pairs),
        **_page(request, "all", projects, {project_id for _, project_id in pairs}),
    }
    return render(request, "runs/approvals/approvals.html", context)


def _page(request: HttpRequest, name: str, projects: Sequence[Project], decidable: Collection[UUID]) -> dict[str, Any]:
    """Return the context of the requested page of entries.

    `decidable` are the projects in which the user may decide. The forms of the entries lead back to the page `name`
    (see `_PAGES` in runs.pages.run.action_pages) with the same kind.
    """
    kind, after = request.GET.get("kind", ""), request.GET.get("after", "")
    if kind not in dict(_KINDS):
        raise InvalidQuery(f"kind must be one of {', '.join(NeedKind)}, not {kind[:64]!r}")
    place = ListPosition.parse(after, "after") if after else None
    found_needs = needs(
        [project.pk for project in projects],
        kinds=[NeedKind(kind)] if kind else list(NeedKind),
        after=NeedPosition(place.created_at, place.run_id) if place is not None else None,
        limit=PAGE_SIZE + 1,
    )
    page, has_more = split_page(found_needs, PAGE_SIZE)
    return {
        "kinds": _KINDS,
        "kind": kind,
        "next": f"{name}:{kind}" if kind else name,
        "is_first_page": place is None,
        "entries": [entry_of(need, may_decide=need.run.project_id in decidable) for need in page],
        "later": str(ListPosition.at(page[-1].since, page[-1].id)) if has_more else "",
        "now": database_clock.now(),
        "days": FAILED_FOR.days,
    }
