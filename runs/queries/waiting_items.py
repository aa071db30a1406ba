"""Items that wait for a person: approvals of tool calls, agents' questions, and tool calls with an unknown outcome.

Native runs only: a session of another program gets its answers there. Three queries find the items, and at most three
load them, whatever their number.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import F, OuterRef, QuerySet, Subquery

from agentops.accounts.models import Project
from runs.conversation.open_calls import asking_calls, unresolved_calls
from runs.models import AgentRun, AgentRunToolCall, Approval
from runs.queries.json_lists import RowSpan
from runs.statuses import RunStatus, WaitReason
from timeline.events import EventType
from timeline.models import Event

Projects = Sequence[UUID] | QuerySet[Project]
#: The ID of an item, and the run that waits.
_Place = tuple[UUID, UUID]


class ItemKind(enum.StrEnum):
    APPROVAL = "approval"
    QUESTION = "question"
    UNKNOWN_OUTCOME = "unknown_outcome"


@dataclass(frozen=True)
class WaitingItem:
    """An item that waits for a person, or a decided approval. `run` and its project are loaded."""

    kind: ItemKind
    #: The ID of the approval, or of the tool call.
    id: UUID
    run: AgentRun
    call: AgentRunToolCall
    #: When the wait began.
    since: datetime
    approval: Approval | None = None

    @property
    def expires_at(self) -> datetime | None:
        """Return when an undecided approval expires. Other items wait without limit."""
        return self.approval.expires_at if self.approval is not None else None


def waiting_items(
    projects: Projects,
    span: RowSpan,
    *,
    kinds: Iterable[ItemKind] = tuple(ItemKind),
    states: Sequence[str] = (Approval.State.PENDING,),
    run_id: UUID | None = None,
) -> list[WaitingItem]:
    """Return the items of these projects, the newest first, or with `span.backward` the oldest first.

    `states`: states of the approvals, empty for any. Questions and unknown outcomes are pending as long as they are
    listed.
    """
    found: list[tuple[UUID, ItemKind, UUID]] = []
    for kind in kinds:
        if kind is not ItemKind.APPROVAL and states and Approval.State.PENDING not in states:
            continue
        rows, name = _ROWS[kind](projects, states)
        if run_id is not None:
            rows = rows.filter(**{"pk" if rows.model is AgentRun else "run": run_id})
        found += [(item_id, kind, of_run) for item_id, of_run in _places(rows, name, span)]
    chosen = sorted(found, reverse=not span.backward)[: span.limit]
    return list(load_items(chosen))


def _approvals(projects: Projects, states: Sequence[str]) -> tuple[QuerySet[Any], str]:
    rows = Approval.objects.filter(project__in=projects)
    return (rows.filter(state__in=states) if states else rows), "pk"


def _questions(projects: Projects, _: Sequence[str]) -> tuple[QuerySet[Any], str]:
    return question_runs(projects), "item_id"


def _unknown_outcomes(projects: Projects, _: Sequence[str]) -> tuple[QuerySet[Any], str]:
    return unknown_outcome_calls(projects), "pk"


def question_runs(projects: Projects) -> QuerySet[AgentRun]:
    """Return the native runs whose agent has asked a question, annotated with the asking call's ID: `item_id`."""
    calls = asking_calls(OuterRef("pk"))
    runs = _waiting_runs(projects, WaitReason.INPUT).annotate(item_id=Subquery(calls.values("pk")[:1]))
    return runs.exclude(item_id=None)


def unknown_outcome_calls(projects: Projects) -> QuerySet[AgentRunToolCall]:
    """Return the calls of native runs whose outcome a person has to choose."""
    return unresolved_calls().filter(run__in=_waiting_runs(projects, WaitReason.UNKNOWN_TOOL))


_ROWS = {
    ItemKind.APPROVAL: _approvals,
    ItemKind.QUESTION: _questions,
    ItemKind.UNKNOWN_OUTCOME: _unknown_outcomes,
}


def _waiting_runs(projects: Projects, reason: WaitReason) -> QuerySet[AgentRun]:
    return AgentRun.objects.filter(
        project__in=projects, status=RunStatus.WAITING, status_reason=reason, source=AgentRun.Source.NATIVE
    )


def _places(rows: QuerySet[Any], name: str, span: RowSpan) -> Iterator[_Place]:
    """Return the first items beyond the position of the span, in its direction."""
    if span.position:
        sign = ("gt" if span.backward else "lt") + "e" * span.inclusive
        rows = rows.filter(**{f"{name}__{sign}": UUID(hex=str(span.position[0]))})
    order = F(name).asc() if span.backward else F(name).desc()
    run = "pk" if rows.model is AgentRun else "run_id"
    yield from rows.order_by(order).values_list(name, run)[: span.limit]


# --- Loading ----------------------------------------------------------------------------------------------------------


def load_items(chosen: Sequence[tuple[UUID, ItemKind, UUID]]) -> Iterator[WaitingItem]:
    """Yield the items with these IDs, kinds and runs, in this order, without items that no longer exist."""
    approvals = _approvals_by_id([each for each, kind, _ in chosen if kind is ItemKind.APPROVAL])
    others = [(each, run_id) for each, kind, run_id in chosen if kind is not ItemKind.APPROVAL]
    calls = AgentRunToolCall.objects.in_bulk([each for each, _ in others]) if others else {}
    runs = _runs_by_id({run_id for _, run_id in others}) if others else {}
    for item_id, kind, run_id in chosen:
        approval = approvals.get(item_id)
        if approval is not None:
            yield WaitingItem(kind, item_id, approval.run, approval.call, approval.created_at, approval)
        elif item_id in calls and run_id in runs:
            yield _item(kind, runs[run_id], calls[item_id])


def _item(kind: ItemKind, run: AgentRun, call: AgentRunToolCall) -> WaitingItem:
    if kind is ItemKind.UNKNOWN_OUTCOME:
        return WaitingItem(kind, call.pk, run, call, call.finished_at or call.created_at)
    asked_at = getattr(run, "asked_at", None) or call.created_at
    return WaitingItem(kind, call.pk, run, call, asked_at)


def _approvals_by_id(ids: Sequence[UUID]) -> Mapping[UUID, Approval]:
    rows = Approval.objects.select_related("run__project", "project", "call")
    # The output of a decided call may have megabytes.
    return rows.defer("call__input", "call__output").in_bulk(ids) if ids else {}


def _runs_by_id(ids: Iterable[UUID]) -> Mapping[UUID, AgentRun]:
    """Return the runs with the time of their last wait."""
    waits = Event.objects.filter(log=OuterRef("pk"), type=EventType.RUN_WAITING).order_by("-seq").values("ts")
    return AgentRun.objects.select_related("project").annotate(asked_at=Subquery(waits[:1])).in_bulk(list(ids))
