"""Families: runs that refer to each other, over however many others; and why a family is kept.

A run needs those that it came from, and is needed by what was resumed, forked or
spawned from it: a family stays together and goes together, so no reference ever leads nowhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from django.db.models import Q

from agentops.projects.models import Project
from runs.models import AgentRun, AgentRunToolCall

#: Columns by which a run names another one.
LINKS = ("root_run_id", "parent_run_id", "resumed_from_id", "forked_from_id")
#: Ids in one query.
ASKED = 200


class Kept(StrEnum):
    """Why a family stays."""

    HELD = "held"  # somebody has put one of its runs on hold
    NEEDED = "needed"  # one of its runs goes on, or has not been kept for long enough


class Member(NamedTuple):
    """Of a run, what decides on its family."""

    run_id: UUID
    project_id: UUID
    completed_at: datetime | None
    held_at: datetime | None


@dataclass(frozen=True)
class Family:
    members: tuple[Member, ...]

    @property
    def run_ids(self) -> list[UUID]:
        """In the order in which they are locked."""
        return sorted(member.run_id for member in self.members)

    def kept(self, project: Project, ended_before: datetime) -> Kept | None:
        """Why it stays; None where every run of it ended before that moment."""
        if any(member.held_at is not None for member in self.members):
            return Kept.HELD
        if all(_over(member, project, ended_before) for member in self.members):
            return None
        return Kept.NEEDED


def families_of(run_ids: Iterable[UUID]) -> list[Family]:
    """The families of these runs, each once. As many rounds of queries as the longest way within a family."""
    members: dict[UUID, Member] = {}
    kin: dict[UUID, set[UUID]] = {}
    asked: set[UUID] = set()
    unknown = set(run_ids)
    while unknown:
        asked |= unknown
        for one, other in _links(unknown, members):
            kin.setdefault(one, set()).add(other)
            kin.setdefault(other, set()).add(one)
        unknown = kin.keys() - asked
    return [Family(tuple(members[run_id] for run_id in group if run_id in members)) for group in _groups(kin)]


def _over(member: Member, project: Project, ended_before: datetime) -> bool:
    ended = member.completed_at is not None and member.completed_at < ended_before
    return ended and member.project_id == project.pk


def _links(run_ids: Collection[UUID], members: dict[UUID, Member]) -> Iterator[tuple[UUID, UUID]]:
    """Pairs of runs of which one names the other, one of them in `run_ids`; fills in the members met."""
    ids = list(run_ids)
    for some in (ids[at : at + ASKED] for at in range(0, len(ids), ASKED)):
        near = Q(pk__in=some)
        for link in LINKS:
            near |= Q(**{f"{link.removesuffix('_id')}__in": some})
        columns = ("pk", "project_id", "completed_at", "held_at", *LINKS)
        for run_id, project_id, completed_at, held_at, *named in AgentRun.objects.filter(near).values_list(*columns):
            members[run_id] = Member(run_id, project_id, completed_at, held_at)
            yield run_id, run_id
            yield from ((run_id, other) for other in named if other is not None)
        spawned = AgentRunToolCall.objects.filter(child_run__isnull=False)
        spawned = spawned.filter(Q(run__in=some) | Q(child_run__in=some))
        yield from spawned.values_list("run_id", "child_run_id")


def _groups(kin: dict[UUID, set[UUID]]) -> Iterator[set[UUID]]:
    """The connected parts of a graph."""
    left = set(kin)
    while left:
        group: set[UUID] = set()
        edge = {left.pop()}
        while edge:
            group |= edge
            edge = set().union(*(kin[run_id] for run_id in edge)) - group
        left -= group
        yield group
