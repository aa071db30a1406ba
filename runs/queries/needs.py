"""The list of entries that need a person, which the start page, the inbox and the bell share.

An entry leaves the list when a person handles it: decides, answers, resolves, resumes or stops it. A failed run, or a
flow run that failed on its own, leaves it when it is dismissed or forked, and after `FAILED_FOR`. A silent runner
leaves it when it sends events again or is dismissed, and after `FAILED_FOR`. A session of another program leaves it
when it continues or is dismissed.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection
from django.db.models import Exists, F, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce

from agentops.accounts.models import Project
from agentops.base.database_clock import Now
from runs.conversation.tool_starts import asking_calls
from runs.models import AgentRun, Approval, FlowRun
from runs.models.querysets import CLAIMED_FROM
from runs.queries.flow_needs import failed_flow_rows, paused_flow_runs, stuck_flow_runs
from runs.queries.waiting_for_people import (
    ItemKind,
    Projects,
    WaitingItem,
    load_items,
    question_runs,
    unknown_outcome_calls,
    waiting_sessions,
)
from runs.statuses import RunStatus

#: Failed runs and silent runners leave the list after this time.
FAILED_FOR = timedelta(days=7)
#: A run that is queued for longer has stalled.
QUEUED_FOR = timedelta(minutes=5)
#: A run whose worker is lost for longer has stalled: another worker takes it over within seconds.
LOST_FOR = timedelta(minutes=1)
#: Maximum count of each kind. Counts from this number on are displayed as "99+".
MAX_COUNT = 100


class NeedKind(enum.StrEnum):
    """The reason why a person is needed."""

    APPROVAL = "approval"
    QUESTION = "question"
    UNKNOWN_OUTCOME = "unknown_outcome"
    #: Sessions of other programs that wait, on their own machine, for a permission or for their user.
    SESSION = "session"
    #: Paused and escalated runs.
    PAUSED = "paused"
    FAILED = "failed"
    #: Runs and flow runs that should continue but do not: no worker takes them, or their runner is silent.
    STALLED = "stalled"


#: The kinds whose entries are tool calls; the other kinds are runs.
CALL_KINDS = (NeedKind.APPROVAL, NeedKind.QUESTION, NeedKind.UNKNOWN_OUTCOME)


@dataclass(frozen=True)
class NeedPosition:
    """A position in the list: the start time of an entry, then its ID."""

    since: datetime
    id: UUID


@dataclass(frozen=True)
class Need:
    """An entry that needs a person. `run` and its project are loaded."""

    kind: NeedKind
    #: The ID of the approval, of the tool call, of the run, or of the flow run.
    id: UUID
    since: datetime
    run: AgentRun | FlowRun
    #: The waiting item, for the kinds in `CALL_KINDS`.
    item: WaitingItem | None = None

    @property
    def position(self) -> NeedPosition:
        return NeedPosition(self.since, self.id)


class NeedRow(NamedTuple):
    """An entry of the list that is not loaded yet."""

    kind: NeedKind
    #: `Need.id`.
    item: UUID
    run_id: UUID
    since: datetime
    is_flow_run: bool


@dataclass(frozen=True)
class NeedCounts:
    """The number of entries of each kind, each at most `MAX_COUNT`."""

    by_kind: Mapping[NeedKind, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.by_kind.values())

    @property
    def label(self) -> str:
        """Return the total as text: "7", or "99+"."""
        return label_of(self.total)


def label_of(number: int) -> str:
    """Return a count as text, with "99+" for larger counts."""
    return str(number) if number < MAX_COUNT else f"{MAX_COUNT - 1}+"


def needs(
    projects: Projects, *, limit: int, kinds: Iterable[NeedKind] = tuple(NeedKind), after: NeedPosition | None = None
) -> list[Need]:
    """Return the oldest entries of these projects after a position, at most `limit`.

    Takes one to four bounded queries for each kind, and at most five that load the entries.
    """
    rows = [row for kind in kinds for query in _ROWS[kind](projects) for row in _oldest(kind, query, after, limit)]
    return _load(sorted(rows, key=lambda row: (row.since, row.item))[:limit])


def need_counts(project_ids: Collection[UUID]) -> dict[UUID, NeedCounts]:
    """Return the counts of entries in each of these projects. One query with bounded parts."""
    if not project_ids:
        return {}
    key = Project._meta.pk
    params = [key.get_db_prep_value(each, connection) for each in project_ids]
    sql, sql_params = _count_sql(connection.vendor)
    placeholders = ", ".join(["%s"] * len(params))
    with connection.cursor() as cursor:
        cursor.execute(f"{sql} WHERE project.id IN ({placeholders})", [*sql_params, *params])
        rows = cursor.fetchall()
    return {
        key.to_python(project_id): NeedCounts(dict(zip(NeedKind, counts, strict=True))) for project_id, *counts in rows
    }


def count_of(project_id: UUID) -> NeedCounts:
    """Return the counts of entries in a project. One query."""
    return need_counts([project_id]).get(project_id, NeedCounts())


# --- The queries of each kind, whose rows have `item`, `of_run` and `since` ------------------------------------------


def _approvals(projects: Projects) -> list[QuerySet[Any]]:
    """Return the pending approvals."""
    rows = Approval.objects.filter(project__in=projects, state=Approval.State.PENDING)
    return [rows.annotate(item=F("pk"), of_run=F("run_id"), since=F("created_at"))]


def _questions(projects: Projects) -> list[QuerySet[Any]]:
    """Return the runs that wait for the answer to a question. The item is the call that asks it."""
    asked_at = Subquery(asking_calls(OuterRef("pk")).values("created_at")[:1])
    return [question_runs(projects).annotate(item=F("item_id"), of_run=F("pk"), since=asked_at)]


def _unknown_outcomes(projects: Projects) -> list[QuerySet[Any]]:
    """Return the calls with an unknown outcome."""
    rows = unknown_outcome_calls(projects)
    return [rows.annotate(item=F("pk"), of_run=F("run_id"), since=Coalesce("finished_at", "created_at"))]


def _sessions(projects: Projects) -> list[QuerySet[Any]]:
    """Return the waiting sessions of other programs."""
    return [_run_rows(runs, F("waits_since")) for runs in waiting_sessions(projects)]


def _paused(projects: Projects) -> list[QuerySet[Any]]:
    """Return the paused runs. Uses the index `run_list_by_status`. For nearly all, the pause is the last event.

    Runs that are paused because of their flow are resumed with it, so only the flow run is an entry.
    """
    runs = AgentRun.objects.filter(
        project__in=projects, status=RunStatus.PAUSED, source=AgentRun.Source.NATIVE
    )  # runs of other runners are resumed there
    runs = runs.exclude(flow_run__status=RunStatus.PAUSED)
    return [_run_rows(runs, Coalesce("log__last_event_at", "created_at")), paused_flow_runs(projects)]


def _failed(projects: Projects) -> list[QuerySet[Any]]:
    """Return the failed runs, and the flow runs that failed on their own."""
    return [_run_rows(failed_runs(projects), F("completed_at")), failed_flow_rows(projects, FAILED_FOR)]


def failed_runs(projects: Projects) -> QuerySet[AgentRun]:
    """Return the failed runs in the list. Uses the index `run_failures`.

    Imported runs are records that need no action.
    """
    runs = AgentRun.objects.filter(
        project__in=projects,
        status=RunStatus.FAILED,
        completed_at__gte=Now() - FAILED_FOR,
        parent_run=None,
        dismissed_at=None,
    ).exclude(source=AgentRun.Source.IMPORT)
    forks = AgentRun.objects.filter(forked_from=OuterRef("pk"))
    return runs.exclude(Exists(forks))


def _stalled(projects: Projects) -> list[QuerySet[Any]]:
    """Return the stalled runs. Uses the indexes `run_list_by_status` and `run_order`.

    Only the oldest queued run that workers execute is an entry, and the oldest remote one.
    """
    runs = AgentRun.objects.filter(project__in=projects, status__in=CLAIMED_FROM)
    native = runs.filter(source=AgentRun.Source.NATIVE)
    earlier = AgentRun.objects.filter(
        project=OuterRef("project"),
        source=AgentRun.Source.NATIVE,
        status=RunStatus.QUEUED,
        queued_at__lt=OuterRef("queued_at"),
    )
    queued = native.filter(status=RunStatus.QUEUED, queued_at__lt=Now() - QUEUED_FOR)
    lost = native.filter(status=RunStatus.RUNNING, lease_expires_at__lt=Now() - LOST_FOR)
    silent = runs.filter(
        Q(dismissed_at=None) | Q(dismissed_at__lt=F("external__silent_since")),
        source=AgentRun.Source.EXTERNAL,
        status=RunStatus.RUNNING,
        external__silent_since__gte=Now() - FAILED_FOR,
    )
    return [
        _run_rows(queued.of_workers().exclude(Exists(earlier.of_workers())), F("queued_at")),
        _run_rows(queued.remote().exclude(Exists(earlier.remote())), F("queued_at")),
        _run_rows(lost, F("lease_expires_at")),
        _run_rows(silent, F("external__silent_since")),
        stuck_flow_runs(projects, QUEUED_FOR, LOST_FOR),
    ]


_ROWS = {
    NeedKind.APPROVAL: _approvals,
    NeedKind.QUESTION: _questions,
    NeedKind.UNKNOWN_OUTCOME: _unknown_outcomes,
    NeedKind.SESSION: _sessions,
    NeedKind.PAUSED: _paused,
    NeedKind.FAILED: _failed,
    NeedKind.STALLED: _stalled,
}


def _run_rows(runs: QuerySet[AgentRun], since: Any) -> QuerySet[Any]:
    return runs.annotate(item=F("pk"), of_run=F("pk"), since=since)


def _oldest(kind: NeedKind, rows: QuerySet[Any], after: NeedPosition | None, limit: int) -> Iterator[NeedRow]:
    """Yield the oldest rows after a position."""
    if after is not None:
        rows = rows.filter(Q(since__gt=after.since) | Q(since=after.since, item__gt=after.id))
    for item, run_id, since in rows.order_by("since", "item").values_list("item", "of_run", "since")[:limit]:
        yield NeedRow(kind, item, run_id, since, rows.model is FlowRun)


# --- Counting ---------------------------------------------------------------------------------------------------------

#: Stands for the project while the statement is compiled. Compiled once, because every page has a bell.
_ANY_PROJECT = UUID(int=0)


@lru_cache(maxsize=2)
def _count_sql(vendor: str) -> tuple[str, list[Any]]:
    """Return the statement that counts the kinds for each project, and its parameters, for the current database."""
    any_project = Project._meta.pk.get_db_prep_value(_ANY_PROJECT, connection)
    columns: list[str] = []
    other_params: list[Any] = []
    for kind in NeedKind:
        counts = []
        for rows in _ROWS[kind]([_ANY_PROJECT]):
            sql, params = rows.order_by().values("pk")[:MAX_COUNT].query.sql_with_params()
            # Each "%s" is a parameter. Literal percent signs are doubled.
            head, *tails = sql.split("%s")
            values = ["project.id" if each == any_project else "%s" for each in params]
            other_params += [each for each in params if each != any_project]
            text = head + "".join(value + tail for value, tail in zip(values, tails, strict=True))
            counts.append(f"(SELECT COUNT(*) FROM ({text}) AS bounded)")  # noqa: S608
        columns.append(" + ".join(counts))
    sql = f"SELECT project.id, {', '.join(columns)} FROM {Project._meta.db_table} AS project"  # noqa: S608
    return sql, other_params


# --- Loading ----------------------------------------------------------------------------------------------------------


def _load(rows: Sequence[NeedRow]) -> list[Need]:
    """Return the entries in this order, without entries that were handled or deleted since."""
    calls = [(row.item, ItemKind(row.kind), row.run_id) for row in rows if row.kind in CALL_KINDS]
    items = {item.id: item for item in load_items(calls)}
    runs = _runs_by_id([row for row in rows if row.kind not in CALL_KINDS])
    entries = []
    for row in rows:
        item, run = items.get(row.item), runs.get(row.run_id)
        if item is not None:
            entries.append(Need(row.kind, row.item, row.since, item.run, item))
        elif run is not None:
            entries.append(Need(row.kind, row.item, row.since, run))
    return entries


def _runs_by_id(rows: Sequence[NeedRow]) -> dict[UUID, AgentRun | FlowRun]:
    """Return the runs and flow runs of entries that are not tool calls. At most two queries."""
    loaded: dict[UUID, AgentRun | FlowRun] = {}
    if run_ids := [row.run_id for row in rows if not row.is_flow_run]:
        runs = AgentRun.objects.select_related("project", "agent").defer("prompt", "result", "structured_output")
        loaded |= runs.in_bulk(run_ids)
    if flow_run_ids := [row.run_id for row in rows if row.is_flow_run]:
        flow_runs = FlowRun.objects.select_related("project", "flow").defer("definition", "snapshot", "inputs")
        loaded |= flow_runs.in_bulk(flow_run_ids)
    return loaded
