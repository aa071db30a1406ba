"""Which concurrency limit a queued run waits for: its agent's or its project's. Computed, not stored."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple
from uuid import UUID

from django.db.models import Count, OuterRef, Q, Subquery

from runs.models import AgentRun
from runs.statuses import RunStatus
from timeline.display import clean


class PlaceWait(NamedTuple):
    """The agent or project that has reached its limit of running runs."""

    #: "agent" or "project".
    kind: str
    name: str
    places: int

    def __str__(self) -> str:
        which = "the only place" if self.places == 1 else f"one of {self.places} places"
        return f"waits for {which} of {self.kind} {clean(self.name)}"


def place_waits(run_ids: Collection[UUID]) -> dict[UUID, PlaceWait]:
    """Return the waits of the given runs that wait for a place. One query; none without runs."""
    if not run_ids:
        return {}
    running = AgentRun.objects.running().filter(project=OuterRef("project")).order_by()
    of_agent = running.filter(agent=OuterRef("agent")).values("agent").annotate(number=Count("pk")).values("number")
    of_project = running.values("project").annotate(number=Count("pk")).values("number")
    has_limit = Q(agent__max_running__isnull=False) | Q(project__max_running__isnull=False)
    rows = AgentRun.objects.native().filter(has_limit, pk__in=run_ids, status=RunStatus.QUEUED)
    rows = rows.annotate(agent_count=Subquery(of_agent), project_count=Subquery(of_project))
    of_owners = [f"{kind}{column}" for kind in ("agent", "project") for column in ("__slug", "__max_running", "_count")]
    waits: dict[UUID, PlaceWait] = {}
    for run_id, *columns in rows.values_list("pk", *of_owners):
        for kind, (name, places, count) in (("agent", columns[:3]), ("project", columns[3:])):
            if places is not None and (count or 0) >= places:
                waits.setdefault(run_id, PlaceWait(kind, name, places))
    return waits
