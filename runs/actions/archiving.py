"""Archive a project: it becomes read-only, and menus do not list it."""

from __future__ import annotations

from agentops.accounts.audit import Actor
from agentops.accounts.errors import NotArchivable
from agentops.accounts.memberships import archive_project
from agentops.accounts.models import Project
from runs.models import AgentRun, FlowRun
from runs.statuses import LIVE

#: Maximum number that is counted.
MAX_COUNT = 1000


def in_progress(project: Project) -> int:
    """Return the number of runs and flow runs of this site that are queued, running or waiting, at most `MAX_COUNT`."""
    rows = (AgentRun.objects.in_progress(), FlowRun.objects.filter(status__in=LIVE))
    return min(sum(each.filter(project=project).order_by()[:MAX_COUNT].count() for each in rows), MAX_COUNT)


def being_recorded(project: Project) -> int:
    """Return the number of recorded runs that have not ended, at most `MAX_COUNT`. They do not prevent archiving."""
    return AgentRun.objects.being_recorded().filter(project=project).order_by()[:MAX_COUNT].count()


def archive(project: Project, *, by: Actor) -> Project:
    """Archive a project. Raise NotArchivable while runs are in progress, because they could no longer be answered or
    stopped.

    A run that is created concurrently continues to its end. Paused runs stay paused until the project is unarchived.
    Recorded runs do not prevent archiving: events from their programs are refused while the project is archived.
    """
    refuse_in_progress(project)
    return archive_project(project, actor=by)


def refuse_in_progress(project: Project) -> None:
    """Raise NotArchivable while runs are in progress."""
    if count := in_progress(project):
        one_or_more = "1 run is" if count == 1 else f"{count} runs are"
        raise NotArchivable(f"{one_or_more} in progress: stop them, or wait until they end")
