"""The one way from an address to a run: what every door asks before it shows or changes one.

May import identity and runs' models.
"""

from __future__ import annotations

from uuid import UUID

from django.db.models import QuerySet

from agentops.projects.access import ANONYMOUS, Action, Principal, project_for, scoped
from agentops.projects.errors import AuthRequired
from runs.errors import RunNotFound
from runs.models import AgentRun


def run_for(
    principal: Principal, run_id: UUID, action: Action = Action.READ, *, among: QuerySet[AgentRun] | None = None
) -> AgentRun:
    """The run, if they may do `action` in its project. `among`: the rows as the door wants them loaded.

    Raises AuthRequired to the anonymous, RunNotFound alike for a foreign and an unknown run, and Forbidden where
    the run may be seen but not this done with it.
    """
    if principal == ANONYMOUS:
        raise AuthRequired
    runs = AgentRun.objects.select_related("project") if among is None else among
    run = scoped(runs, principal).filter(pk=run_id).first()
    if run is None:
        raise RunNotFound("no such run")
    if action is not Action.READ:
        project_for(principal, run.project_id, action)
    return run
