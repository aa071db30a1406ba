"""Entries of the inbox and the start page: runs, calls and questions that need a person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.conf import settings
from django.urls import reverse

from agentops.accounts.models import Project
from runs.lifecycle.questions import question_in
from runs.models import AgentRun, FlowRun
from runs.pages.approvals.shown_approval import ShownApproval, shown
from runs.pages.run.any_run import address_of
from runs.pages.run.banner import AgentQuestion, OpenCall, label_of
from runs.pages.run.external_banners import what_waits
from runs.pages.run.waits import open_call, question_of
from runs.pages.timeline.cards import LINE
from runs.queries.overview.needs import Need, NeedKind
from runs.queries.waiting_items import WaitingItem
from runs.statuses import PauseReason, RunStatus
from timeline.display import clean, clip

#: Maximum bytes of an error message.
ERROR_BYTES = 400
#: The name of a kind, the label of its badge, and the status that sets the badge's colour and icon.
KINDS = {
    NeedKind.APPROVAL: ("Approvals", "approval", "waiting"),
    NeedKind.QUESTION: ("Questions", "question", "waiting"),
    NeedKind.UNKNOWN_OUTCOME: ("Unknown outcomes", "unknown outcome", "unknown"),
    NeedKind.SESSION: ("Sessions", "session", "waiting"),
    NeedKind.PAUSED: ("Paused", "paused", "paused"),
    NeedKind.FAILED: ("Failed", "failed", "failed"),
    NeedKind.STALLED: ("Stalled", "stalled", "alert"),
}
_STALLS = {
    RunStatus.QUEUED: "No worker takes it: it is the oldest in the queue. Check that a worker is running.",
    RunStatus.RUNNING: "Its worker is gone, and no other has taken over. Check that a worker is running.",
}
#: Prefixes of the labels that show where a session runs.
_PLACES = ("host:", "folder:", "branch:")
_FLOW_STALL = "No worker takes its next step. Check that a worker is running."
_FLOW_RESUME = "Resuming enters each open node again, in its own conversation. Nodes that are done do not run again."
_SILENT = "Its runner has stopped sending events. It is executed elsewhere, and cannot be resumed here."


@dataclass(frozen=True)
class NeedEntry:
    """An entry for its template. An entry about a tool call has exactly one of `approval`, `question` and `call`."""

    #: The ID of the approval, tool call, run or flow run. Also the key of a form: a double click answers only once.
    id: UUID
    #: The badge: its label and its status.
    word: str
    status: str
    run_id: UUID
    run_title: str
    #: The agent or the flow.
    agent: str
    #: "run" or "flow run", its page, and the targets of the forms.
    noun: str
    page_url: str
    resume_url: str
    dismiss_url: str
    project: Project
    since: datetime
    expires_at: datetime | None
    may_decide: bool
    #: Short reason why a run needs a person; for a tool call, its tool or its question.
    reason: str = ""
    #: Further text, which may be untrusted, such as an error message.
    quote: str = ""
    #: The effect of resuming, or why it is not possible.
    resume_note: str = ""
    may_resume: bool = False
    may_dismiss: bool = False
    #: Whether the person must act where the program runs, which these labels identify.
    is_elsewhere: bool = False
    labels: Sequence[str] = ()
    approval: ShownApproval | None = None
    question: AgentQuestion | None = None
    call: OpenCall | None = None


def entry_of(need: Need, *, may_decide: bool) -> NeedEntry:
    """Return the entry, with forms if the user may decide."""
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
    if item.approval is not None:
        approval = shown(item.approval, may_decide=may_decide)
        return {"approval": approval, "reason": approval.tool}
    if kind is NeedKind.QUESTION:
        question = question_of(question_in(item.run, item.call))
        return {"question": question, "reason": clip(question.text.strip().partition("\n")[0], LINE).text}
    call = open_call(item.call)
    return {"call": call, "reason": call.name}


def _of_flow_run(kind: NeedKind, flow_run: FlowRun) -> dict[str, object]:
    if kind is NeedKind.PAUSED:
        return {"reason": label_of(flow_run.status_reason), "resume_note": _FLOW_RESUME, "may_resume": True}
    if kind is NeedKind.FAILED:
        error = clip(flow_run.error_message, ERROR_BYTES).text
        return {"reason": label_of(flow_run.error_type), "quote": error, "may_dismiss": True}
    return {"reason": _FLOW_STALL}


def _of_run(kind: NeedKind, run: AgentRun) -> dict[str, object]:
    if kind is NeedKind.STALLED:
        is_silent = run.source != AgentRun.Source.NATIVE
        return {"reason": _SILENT if is_silent else _STALLS.get(run.state, ""), "may_dismiss": is_silent}
    if kind is NeedKind.SESSION:
        what, where = what_waits(run)
        labels = [clean(label) for label in run.labels if label.startswith(_PLACES)]
        return {"reason": f"{what}.", "quote": where, "may_dismiss": True, "is_elsewhere": True, "labels": labels}
    error = {"quote": clip(run.error_message, ERROR_BYTES).text}
    if kind is NeedKind.FAILED:
        return {"reason": label_of(run.error_type) if run.error_type else "", "may_dismiss": True, **error}
    cap = settings.AGENTOPS_MAX_TOTAL_STEPS
    may_resume, steps = run.step_count < cap, min(run.max_steps, cap - run.step_count)
    note = (
        f"Resuming continues after step {run.step_count} with up to {steps} more step{'' if steps == 1 else 's'}."
        if may_resume
        else f"It has used all {cap} steps and cannot be resumed. Stop it, or fork it on its page."
    )
    reason = "" if run.status_reason == PauseReason.ESCALATED else label_of(run.status_reason)
    return {"reason": reason, "resume_note": note, "may_resume": may_resume, **error}
