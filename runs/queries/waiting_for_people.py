"""How many runs of a project wait for a person."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Exists, OuterRef, Q

from agentops.projects.models import Project
from runs.models import AgentRun, Approval
from runs.statuses import RunStatus, WaitReason

#: The largest number that is counted.
MAX_COUNT = 100
#: A session of another program that began before is taken for one that its user has left.
LIVE = timedelta(days=1)
_REASONS = (WaitReason.APPROVAL, WaitReason.INPUT, WaitReason.UNKNOWN_TOOL)


def inbox_count(project_id: UUID) -> int:
    """Return the number of runs with something in the inbox (runs.queries.waiting_items), at most `MAX_COUNT`."""
    waiting = AgentRun.objects.filter(project=project_id, status=RunStatus.WAITING, status_reason__in=_REASONS)
    # Sub-agents of sessions are no native runs, and are decided about here.
    pending = Approval.objects.filter(run=OuterRef("pk"), state=Approval.State.PENDING)
    return waiting.filter(Q(source=AgentRun.Source.NATIVE) | Exists(pending))[:MAX_COUNT].count()


def waiting_for_people(project: Project, now: datetime) -> int:
    """Return the number of runs that wait for an approval, an answer or a decision, at most `MAX_COUNT`.

    Sessions that were imported after their end wait too, but nobody answers them: they do not count.
    """
    waiting = AgentRun.objects.filter(project=project, status=RunStatus.WAITING, status_reason__in=_REASONS)
    is_live = Q(source=AgentRun.Source.NATIVE) | Q(status_reason=WaitReason.APPROVAL) | Q(created_at__gte=now - LIVE)
    return waiting.filter(is_live)[:MAX_COUNT].count()
