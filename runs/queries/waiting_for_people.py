"""Runs and items that wait for a person.

Items of native runs are approvals of tool calls, agents' questions, and tool calls with an unknown outcome. A session
of another program also waits, but gets its answers where it runs. The list of runs, the inbox with its bell, and alert
rules share these conditions.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Exists, F, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce

from agentops.accounts.models import Project
from agentops.base.database_clock import Now
from runs.conversation.tool_starts import asking_calls, unresolved_calls
from runs.models import AgentRun, AgentRunToolCall, Approval
from runs.queries.json_lists import RowSpan, id_param, uuid_of
from runs.statuses import RunStatus, WaitReason
from timeline.events import EventType
from timeline.models import Event

#: Maximum count of waiting runs.
MAX_COUNT = 100
#: A session of another program that started longer ago counts as abandoned, unless it waits for a permission.
LIVE = timedelta(days=1)
#: A session of another program whose last event is older counts as ended.
ASKED_FOR = timedelta(days=7)
_REASONS = (WaitReason.APPROVAL, WaitReason.INPUT, WaitReason.UNKNOWN_TOOL)
#: Maximum levels, and maximum runs, below a run that are searched. Trees of external runs may be larger.
MAX_LEVELS, MAX_BELOW = 50, 5_000
_WAITING_BELOW = f"""
WITH RECURSIVE below (id, level) AS (
    SELECT r.id, 1 FROM agent_runs r WHERE r.parent_run_id = %s AND r.removed_at IS NULL
    UNION ALL
    SELECT r.id, below.level + 1 FROM below JOIN agent_runs r ON r.parent_run_id = below.id
    WHERE r.removed_at IS NULL AND below.level < %s
)
SELECT r.id, r.title, CASE WHEN r.status = 'waiting' THEN r.status_reason ELSE '' END, COALESCE(a.tool_name, '')
FROM (SELECT id FROM below LIMIT %s) searched JOIN agent_runs r ON r.id = searched.id
LEFT JOIN agent_run_approvals a ON a.run_id = r.id AND a.state = 'pending'
WHERE (r.source = 'native' OR a.id IS NOT NULL) AND (
    r.status = 'paused' OR r.status = 'waiting' AND r.status_reason IN ({", ".join(["%s"] * len(_REASONS))}))
ORDER BY r.id LIMIT %s
"""  # noqa: S608 - constants only


def waits_for_people() -> Q:
    """Return the condition of waiting runs that continue only if a person acts, here or where their program runs."""
    return Q(status=RunStatus.WAITING, status_reason__in=_REASONS) & (_is_decided_here() | _is_session())


def waiting_for_people(project: Project) -> int:
    """Return the number of runs that wait for an approval, an answer or a decision, at most `MAX_COUNT`."""
    return AgentRun.objects.filter(waits_for_people(), project=project)[:MAX_COUNT].count()


def waiting_sessions(projects: Sequence[UUID] | QuerySet[Project]) -> list[QuerySet[AgentRun]]:
    """Return the sessions of other programs that wait for a person where they run, annotated with `waits_since`.

    Two querysets: sessions that wait for a permission, and recent others. The age of the others is limited by the index
    `run_list_by_status`, because very many imported sessions wait for a user who has left them.
    """
    runs = AgentRun.objects.filter(_is_session(), project__in=projects, status=RunStatus.WAITING)
    runs = runs.annotate(waits_since=Coalesce("log__last_event_at", "created_at"))
    others = [reason for reason in _REASONS if reason is not WaitReason.APPROVAL]
    return [
        runs.filter(status_reason=WaitReason.APPROVAL),
        runs.filter(status_reason__in=others, created_at__gte=Now() - LIVE),
    ]


def _is_decided_here() -> Q:
    return Q(source=AgentRun.Source.NATIVE) | _asks_here()


def _asks_here() -> Q:
    """Return the condition of runs with a call that waits for approval here, such as one of a Claude Code sub-agent."""
    return Q(Exists(Approval.objects.filter(run=OuterRef("pk"), state=Approval.State.PENDING)))


def _is_session() -> Q:
    """Return the condition of recent, undismissed sessions that a person continues where they run.

    Excludes sub-agents, which have no user, and old sessions, such as those imported after their end.
    """
    is_live = Q(status_reason=WaitReason.APPROVAL) | Q(created_at__gte=Now() - LIVE)
    is_recent = Q(log__last_event_at=None) | Q(log__last_event_at__gte=Now() - ASKED_FOR)
    is_undismissed = Q(dismissed_at=None) | Q(dismissed_at__lt=F("log__last_event_at"))
    return ~Q(source=AgentRun.Source.NATIVE) & Q(parent_run=None) & is_live & is_recent & is_undismissed & ~_asks_here()


@dataclass(frozen=True)
class WaitingRun:
    """A run that does not continue without a person. `reason` is empty for a paused run."""

    id: UUID
    title: str
    reason: str
    #: The tool of the call that waits for approval; empty for other reasons.
    tool: str


def waiting_below(run_id: UUID, limit: int) -> list[WaitingRun]:
    """Return the runs below a run that wait for a decision here or are paused, the oldest first. One query.

    Runs of other programs are left out, unless a call of theirs is decided here.
    """
    params = [id_param(run_id), MAX_LEVELS, MAX_BELOW, *(reason.value for reason in _REASONS), limit]
    with connection.cursor() as cursor:
        cursor.execute(_WAITING_BELOW, params)
        return [WaitingRun(uuid_of(each), *fields) for each, *fields in cursor.fetchall()]


#: The projects of a search.
Projects = Sequence[UUID] | QuerySet[Project]


class ItemKind(enum.StrEnum):
    """The kinds of items that wait for a person."""

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
        """Return when an approval expires. None for other items, which wait without limit."""
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

    `states`: the states of approvals to return, empty for all. Questions and unknown outcomes are always pending. One
    query for each kind, and at most three that load the items.
    """
    keys: list[tuple[UUID, ItemKind, UUID]] = []
    for kind in kinds:
        if kind is not ItemKind.APPROVAL and states and Approval.State.PENDING not in states:
            continue
        rows, name = _rows(kind, projects, states)
        if run_id is not None:
            rows = rows.filter(**{"pk" if rows.model is AgentRun else "run": run_id})
        keys += [(item_id, kind, run_id) for item_id, run_id in _beyond(rows, name, span)]
    return list(load_items(sorted(keys, reverse=not span.backward)[: span.limit]))


def _rows(kind: ItemKind, projects: Projects, states: Sequence[str]) -> tuple[QuerySet[Any], str]:
    """Return the rows with the items of a kind, and the name of the column with the item's ID."""
    if kind is ItemKind.QUESTION:
        return question_runs(projects), "item_id"
    if kind is ItemKind.UNKNOWN_OUTCOME:
        return unknown_outcome_calls(projects), "pk"
    rows = Approval.objects.filter(project__in=projects)
    return rows.filter(state__in=states) if states else rows, "pk"


def question_runs(projects: Projects) -> QuerySet[AgentRun]:
    """Return the native runs whose agent has asked a question, annotated with the asking call's ID: `item_id`."""
    calls = asking_calls(OuterRef("pk"))
    runs = _waiting_runs(projects, WaitReason.INPUT).annotate(item_id=Subquery(calls.values("pk")[:1]))
    return runs.exclude(item_id=None)


def unknown_outcome_calls(projects: Projects) -> QuerySet[AgentRunToolCall]:
    """Return the calls of native runs whose outcome a person has to choose."""
    return unresolved_calls().filter(run__in=_waiting_runs(projects, WaitReason.UNKNOWN_TOOL))


def _waiting_runs(projects: Projects, reason: WaitReason) -> QuerySet[AgentRun]:
    return AgentRun.objects.filter(
        project__in=projects, status=RunStatus.WAITING, status_reason=reason, source=AgentRun.Source.NATIVE
    )


def _beyond(rows: QuerySet[Any], name: str, span: RowSpan) -> Iterable[tuple[UUID, UUID]]:
    """Return the IDs of the first items beyond the span's position, each with the ID of its run."""
    if span.position:
        sign = ("gt" if span.backward else "lt") + "e" * span.inclusive
        rows = rows.filter(**{f"{name}__{sign}": UUID(hex=str(span.position[0]))})
    order = F(name).asc() if span.backward else F(name).desc()
    run = "pk" if rows.model is AgentRun else "run_id"
    return rows.order_by(order).values_list(name, run)[: span.limit]


# --- Loading ----------------------------------------------------------------------------------------------------------


def load_items(keys: Sequence[tuple[UUID, ItemKind, UUID]]) -> Iterator[WaitingItem]:
    """Yield the items with these IDs, kinds and run IDs, in this order, without items that no longer exist."""
    approvals = _approvals_by_id([each for each, kind, _ in keys if kind is ItemKind.APPROVAL])
    others = [(each, run_id) for each, kind, run_id in keys if kind is not ItemKind.APPROVAL]
    calls = AgentRunToolCall.objects.in_bulk([each for each, _ in others]) if others else {}
    runs = _runs_by_id({run_id for _, run_id in others}) if others else {}
    for item_id, kind, run_id in keys:
        approval = approvals.get(item_id)
        if approval is not None:
            yield WaitingItem(kind, item_id, approval.run, approval.call, approval.created_at, approval)
        elif item_id in calls and run_id in runs:
            yield _item(kind, runs[run_id], calls[item_id])


def _item(kind: ItemKind, run: AgentRun, call: AgentRunToolCall) -> WaitingItem:
    """Return a question or an unknown outcome. `run` comes from `_runs_by_id`."""
    if kind is ItemKind.UNKNOWN_OUTCOME:
        return WaitingItem(kind, call.pk, run, call, call.finished_at or call.created_at)
    asked_at = getattr(run, "asked_at", None) or call.created_at
    return WaitingItem(kind, call.pk, run, call, asked_at)


def _approvals_by_id(ids: Sequence[UUID]) -> Mapping[UUID, Approval]:
    rows = Approval.objects.select_related("run__project", "project", "call")
    # The output of a decided call may have megabytes.
    return rows.defer("call__input", "call__output").in_bulk(ids) if ids else {}


def _runs_by_id(ids: Iterable[UUID]) -> Mapping[UUID, AgentRun]:
    """Return the runs, annotated with the start of their last wait, `asked_at`."""
    waits = Event.objects.filter(log=OuterRef("pk"), type=EventType.RUN_WAITING).order_by("-seq").values("ts")
    return AgentRun.objects.select_related("project").annotate(asked_at=Subquery(waits[:1])).in_bulk(list(ids))
