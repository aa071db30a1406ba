"""What the inbox shows of something that waits for a person."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from agentops.projects.models import Project
from runs.lifecycle.questions import question_in
from runs.pages.approvals.shown_approval import ShownApproval, shown
from runs.pages.run.banner import AgentQuestion, OpenCall
from runs.pages.run.waits import open_call, question_of
from runs.pages.timeline.cards import LINE
from runs.queries.waiting_items import ItemKind, WaitingItem
from timeline.display import clip

_TITLES = {
    ItemKind.APPROVAL: "Approval",
    ItemKind.QUESTION: "Question",
    ItemKind.UNKNOWN_OUTCOME: "Unknown outcome",
}


@dataclass(frozen=True)
class WaitingEntry:
    """An entry of the inbox for its template. One of `approval`, `question` and `call` is set."""

    #: The ID of the approval, or of the tool call. Also the key of a form: a double click answers once.
    id: UUID
    kind: str
    run_id: UUID
    run_title: str
    project: Project
    since: datetime
    expires_at: datetime | None
    may_decide: bool
    approval: ShownApproval | None = None
    question: AgentQuestion | None = None
    call: OpenCall | None = None


def entry_of(item: WaitingItem, *, may_decide: bool) -> WaitingEntry:
    """Return the entry of an item, with forms if the user may decide."""
    approval, is_question = item.approval, item.kind is ItemKind.QUESTION
    return WaitingEntry(
        id=item.id,
        kind=_TITLES[item.kind],
        run_id=item.run.pk,
        run_title=clip(item.run.title, LINE).text or "(untitled)",
        project=item.run.project,
        since=item.since,
        expires_at=item.expires_at,
        may_decide=may_decide,
        approval=shown(approval, may_decide=may_decide) if approval is not None else None,
        question=question_of(question_in(item.run, item.call)) if is_question else None,
        call=open_call(item.call) if item.kind is ItemKind.UNKNOWN_OUTCOME else None,
    )
