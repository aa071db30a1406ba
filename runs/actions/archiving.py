"""Archive a project: it becomes read-only, and menus do not list it."""

from __future__ import annotations

from agentops.projects.audit import Actor
from agentops.projects.errors import NotArchivable
from agentops.projects.memberships import archive_project
from agentops.projects.models import Project
from runs.models import AgentRun, FlowRun
from runs.statuses import LIVE

#: Runs are counted up to here.
MAX_COUNT = 1000


def in_progress(project: Project) -> int:
    """Return the number of runs and flow runs that are queued, running or waiting, at most `MAX_COUNT`."""
    count = sum(
        rows.filter(project=project, status__in=LIVE).order_by()[:MAX_COUNT].count()
        for rows in (AgentRun.objects.all(), FlowRun.objects.all())
    )
    return min(count, MAX_COUNT)


def archive(project: Project, *, by: Actor) -> Project:
    """Archive a project. Raise NotArchivable while runs are in progress: nobody could answer or stop them then.

    A run that is created at the same moment continues to its end. Paused runs stay paused until somebody unarchives.
    """
    count = in_progress(project)
    if count:
        one_or_more = "1 run is" if count == 1 else f"{count} runs are"
        raise NotArchivable(f"{one_or_more} in progress: stop them, or wait until they end")
    return archive_project(project, actor=by)
