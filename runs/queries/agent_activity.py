"""The recent activity of a project's agents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Count, OuterRef, QuerySet, Subquery, UUIDField

from runs.models import Agent, AgentRun

RECENT = timedelta(days=7)


@dataclass
class AgentActivity:
    """The runs of an agent created since a time."""

    since: datetime
    #: Status → number of runs, the most frequent first.
    by_status: dict[str, int] = field(default_factory=dict)

    @property
    def runs(self) -> int:
        """Return the number of runs."""
        return sum(self.by_status.values())


def with_last_run(agents: QuerySet[Agent]) -> QuerySet[Agent]:
    """Annotate agents with the ID, the status and the creation time of their newest run: `last_run`, and so on."""
    newest = AgentRun.objects.filter(agent=OuterRef("pk")).order_by("-created_at")
    return agents.annotate(
        last_run=Subquery(newest.values("log")[:1], output_field=UUIDField()),
        last_status=Subquery(newest.values("status")[:1]),
        last_run_at=Subquery(newest.values("created_at")[:1]),
    )


def activity_of(agent_ids: Sequence[UUID], now: datetime) -> dict[UUID, AgentActivity]:
    """Return the activity of agents in the period `RECENT`. One query."""
    since = now - RECENT
    runs = AgentRun.objects.filter(agent__in=agent_ids, created_at__gte=since)
    counts = runs.values_list("agent_id", "status").annotate(count=Count("pk")).order_by("-count", "status")
    activity = {agent_id: AgentActivity(since) for agent_id in agent_ids}
    for agent_id, status, count in counts:
        if agent_id is not None:
            activity[agent_id].by_status[status] = count
    return activity
