"""The one way from an address to a run: what every door asks before it shows or changes one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from agentops.projects.access import ANONYMOUS, Action, Principal, project_for, scoped
from agentops.projects.errors import AuthRequired
from agentops.projects.models import Project
from runs.errors import RunExpired, RunNotFound
from runs.models import AgentRun
from timeline.models import Tombstone


def run_for(
    principal: Principal, run_id: UUID, action: Action = Action.READ, *, among: QuerySet[AgentRun] | None = None
) -> AgentRun:
    """The run, if they may do `action` in its project. `among`: the rows as the door wants them loaded.

    Raises AuthRequired to the anonymous, RunNotFound alike for a foreign and an unknown run, RunExpired for one that
    was removed, and Forbidden where the run may be seen but not this done with it.
    """
    if principal == ANONYMOUS:
        raise AuthRequired
    runs = AgentRun.objects.select_related("project") if among is None else among
    run = scoped(runs, principal).filter(pk=run_id).first()
    if run is None:
        raise _missing(scoped(Tombstone.objects.all(), principal), run_id)
    if action is not Action.READ:
        project_for(principal, run.project_id, action)
    return run


def run_in(project: Project, run_id: UUID, *, among: QuerySet[AgentRun] | None = None) -> AgentRun:
    """The run, if it belongs to `project`, in which the caller may do what it is about to (project_for has said so).

    Raises RunNotFound alike for another project's run and an unknown one, RunExpired for one that was removed.
    """
    runs = AgentRun.objects.all() if among is None else among
    run = runs.filter(project=project, pk=run_id).first()
    if run is None:
        raise _missing(Tombstone.objects.filter(project=project), run_id)
    return run


def require_edits(principal: Principal, run: AgentRun, changes: Mapping[str, Any]) -> None:
    """Whether they may run its agent with these changes. Its settings say which files and hosts its tools reach, and
    what it may spend: those are for whoever may configure agents. Raises Forbidden."""
    if "settings" in changes:
        project_for(principal, run.project_id, Action.CONFIGURE)


def expired(stone: Tombstone) -> RunExpired:
    """The refusal that tells what is left of a run."""
    text = f"run {stone.pk} was removed on {stone.removed_at:%Y-%m-%d}: {stone.reason}"
    told = {
        "id": str(stone.pk),
        **stone.facts,
        "created_at": stone.created_at,
        "completed_at": stone.completed_at,
        "removed_at": stone.removed_at,
        "removed_by": stone.removed_by,
        "reason": stone.reason,
        "rows": stone.rows,
    }
    return RunExpired(text, tombstone=told)


def _missing(stones: QuerySet[Tombstone], run_id: UUID) -> RunNotFound | RunExpired:
    """Why there is no such run, for somebody who may see these tombstones."""
    stone = stones.filter(pk=run_id).first()
    return RunNotFound("no such run") if stone is None else expired(stone)
