"""Runs that wait for a person: the count of a project, the sessions of other programs, and the runs below a run.

The list of runs, the inbox with its bell, and alert rules share these conditions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.db import connection
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Coalesce

from agentops.accounts.models import Project
from agentops.base.database_clock import Now
from runs.models import AgentRun, Approval
from runs.queries.json_lists import id_param, uuid_of
from runs.statuses import RunStatus, WaitReason

#: Maximum count.
MAX_COUNT = 100
#: A session of another program that started earlier counts as abandoned by its user.
LIVE = timedelta(days=1)
#: A session that waits longer for a permission counts as ended.
ASKED_FOR = timedelta(days=7)
_REASONS = (WaitReason.APPROVAL, WaitReason.INPUT, WaitReason.UNKNOWN_TOOL)
#: Levels, and runs, below a run that are searched. Native runs have limits; runs of other programs have none.
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
    """Return the condition of runs that continue only if a person acts, here or where their program runs."""
    return Q(status=RunStatus.WAITING, status_reason__in=_REASONS) & (_is_decided_here() | _is_session())


def waiting_for_people(project: Project) -> int:
    """Return the number of runs that wait for an approval, an answer or a decision, at most `MAX_COUNT`."""
    return AgentRun.objects.filter(waits_for_people(), project=project)[:MAX_COUNT].count()


def waiting_sessions(projects: Sequence[UUID] | QuerySet[Project]) -> list[QuerySet[AgentRun]]:
    """Return the sessions of other programs that wait for a person where they run, with the time `waits_since`.

    Two querysets: sessions that wait for a permission, and the others. The index `run_list_by_status` bounds the others
    by age, because very many imported sessions wait for a user who has left them.
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
    """Return the condition that a call waits for approval here: of a native run, or of a Claude Code sub-agent."""
    return Q(Exists(Approval.objects.filter(run=OuterRef("pk"), state=Approval.State.PENDING)))


def _is_session() -> Q:
    """Return the condition of undismissed sessions that a person continues elsewhere.

    A sub-agent has no user, and a session that was imported after its end gets no answer.
    """
    is_live = Q(status_reason=WaitReason.APPROVAL) | Q(created_at__gte=Now() - LIVE)
    is_recent = Q(log__last_event_at=None) | Q(log__last_event_at__gte=Now() - ASKED_FOR)
    is_unseen = Q(dismissed_at=None) | Q(dismissed_at__lt=F("log__last_event_at"))
    return ~Q(source=AgentRun.Source.NATIVE) & Q(parent_run=None) & is_live & is_recent & is_unseen & ~_asks_here()


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

    Runs of other programs are left out, unless their call is decided here.
    """
    params = [id_param(run_id), MAX_LEVELS, MAX_BELOW, *(reason.value for reason in _REASONS), limit]
    with connection.cursor() as cursor:
        cursor.execute(_WAITING_BELOW, params)
        return [WaitingRun(uuid_of(each), *fields) for each, *fields in cursor.fetchall()]
