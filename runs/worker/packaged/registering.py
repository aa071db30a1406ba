"""Creates the agents of installed packages in the projects of the site, so that people can start runs of them."""

from __future__ import annotations

import logging
from uuid import UUID

from agentops.accounts.models import Project
from agentops.base.refusals import Refusal
from runs.queries.remote_processes import is_project_of_packages
from runs.remote.registration import register_packaged
from runs.worker.packaged.catalogue import AGENTS

log = logging.getLogger(__name__)
#: The actor in the audit log.
ACTOR = "package"
#: The projects in which this process has registered its agents.
_registered: set[UUID] = set()


def register_agents() -> None:
    """Register the agents of this process in all projects. Raises database errors."""
    _registered.clear()
    register_in_new_projects()


def register_in_new_projects() -> None:
    """Register the agents of this process in the projects in which it has not done so. Raises database errors.

    Archived projects are left out.
    """
    offers = AGENTS.offers()
    projects = Project.objects.filter(archived_at=None).exclude(pk__in=_registered) if offers else ()
    for project in projects:
        if is_project_of_packages(project):
            for offer in offers:
                try:
                    register_packaged(project, offer, by=ACTOR)
                except Refusal as refusal:
                    log.warning("an agent of a package is left out of the project %s: %s", project.slug, refusal)
        _registered.add(project.pk)
