"""Run groups: runs and flow runs that are connected, directly or indirectly, by a resume, a fork, a parent or a flow.

Retention keeps or removes a group as a whole, so that no run refers to a removed run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from django.db.models import Q

from agentops.accounts.models import Project
from runs.models import AgentRun, AgentRunToolCall, FlowRun

#: The columns that link a run to another one.
LINKS = ("root_run_id", "parent_run_id", "resumed_from_id", "forked_from_id", "flow_run_id")
_COLUMNS = (
    *("pk", "project_id", "completed_at", "held_at"),
    *("source", "log__last_event_at", "external__imported_at", *LINKS),
)
#: The number of IDs in one query.
QUERY_BATCH = 200


class RetentionReason(StrEnum):
    """The reason why a group is kept."""

    HELD = "held"  # one of its runs is on hold
    NEEDED = "needed"  # one of its runs is live, ended too recently, or was recorded too recently


class Member(NamedTuple):
    """The columns of a run or a flow run that retention needs."""

    run_id: UUID
    project_id: UUID
    completed_at: datetime | None
    held_at: datetime | None
    #: The start of its retention period; None if it has not started.
    kept_from: datetime | None


@dataclass(frozen=True)
class RunGroup:
    """A set of connected runs."""

    members: tuple[Member, ...]

    @property
    def run_ids(self) -> list[UUID]:
        """The sorted IDs of the runs, which is the order of locking."""
        return sorted(member.run_id for member in self.members)

    @property
    def has_ended(self) -> bool:
        """Whether all its runs have ended. Recorded runs may never end."""
        return all(member.completed_at is not None for member in self.members)

    def reason_to_keep(self, project: Project, before: datetime) -> RetentionReason | None:
        """Return why the group is kept; None if the retention period of all its runs began before `before`."""
        if any(member.held_at is not None for member in self.members):
            return RetentionReason.HELD
        if all(_is_due(member, project, before) for member in self.members):
            return None
        return RetentionReason.NEEDED


def run_groups_of(run_ids: Iterable[UUID]) -> list[RunGroup]:
    """Return the groups of these runs, each once.

    Follows the links from `run_ids` in rounds, one link further in each round. The number of queries grows with the
    rounds, and with the batches of `QUERY_BATCH` runs in each.
    """
    members: dict[UUID, Member] = {}
    neighbours: dict[UUID, set[UUID]] = {}
    visited: set[UUID] = set()
    unknown = set(run_ids)
    while unknown:
        visited |= unknown
        for first, second in _links(unknown, members):
            neighbours.setdefault(first, set()).add(second)
            neighbours.setdefault(second, set()).add(first)
        unknown = neighbours.keys() - visited
    return [RunGroup(tuple(members[run_id] for run_id in group if run_id in members)) for group in _groups(neighbours)]


def _is_due(member: Member, project: Project, before: datetime) -> bool:
    return member.kept_from is not None and member.kept_from < before and member.project_id == project.pk


def _links(run_ids: Collection[UUID], members: dict[UUID, Member]) -> Iterator[tuple[UUID, UUID]]:
    """Yield pairs of linked runs of which at least one is in `run_ids`, and add the runs to `members`."""
    ids = list(run_ids)
    for batch in (ids[at : at + QUERY_BATCH] for at in range(0, len(ids), QUERY_BATCH)):
        related = Q(pk__in=batch)
        for link in LINKS:
            related |= Q(**{f"{link.removesuffix('_id')}__in": batch})
        for run_id, project_id, completed_at, held_at, *rest in AgentRun.objects.filter(related).values_list(*_COLUMNS):
            source, last_event_at, imported_at, *linked = rest
            is_native = source == AgentRun.Source.NATIVE
            # The last time at which this site recorded an external run, as in `RunQuerySet.silent_since`.
            recorded_at = max(filter(None, (last_event_at, imported_at)), default=None)
            kept_from = completed_at if is_native else recorded_at
            members[run_id] = Member(run_id, project_id, completed_at, held_at, kept_from)
            yield run_id, run_id
            yield from ((run_id, second) for second in linked if second is not None)
        flow_runs = FlowRun.objects.filter(pk__in=batch).values_list("pk", "project_id", "completed_at")
        for flow_run_id, project_id, completed_at in flow_runs:
            members[flow_run_id] = Member(flow_run_id, project_id, completed_at, None, completed_at)
            yield flow_run_id, flow_run_id
        spawned = AgentRunToolCall.objects.filter(child_run__isnull=False)
        spawned = spawned.filter(Q(run__in=batch) | Q(child_run__in=batch))
        yield from spawned.values_list("run_id", "child_run_id")


def _groups(neighbours: dict[UUID, set[UUID]]) -> Iterator[set[UUID]]:
    """Yield the connected components of a graph, which is given by the neighbours of each node."""
    remaining = set(neighbours)
    while remaining:
        group: set[UUID] = set()
        new = {remaining.pop()}
        while new:
            group |= new
            new = set().union(*(neighbours[run_id] for run_id in new)) - group
        remaining -= group
        yield group
