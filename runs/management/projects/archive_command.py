"""`agentops project archive`: refused while runs of the project are in progress."""

from __future__ import annotations

from typing import Any

from agentops.projects.access import SYSTEM, Action, project_for
from agentops.projects.management.base import AgentopsCommand, operator
from runs.actions import archiving


def archive(command: AgentopsCommand, options: dict[str, Any]) -> None:
    """Archive the project `slug`. Raise NotArchivable."""
    project = archiving.archive(project_for(SYSTEM, options["slug"], Action.MANAGE), by=operator())
    command.stdout.write(f"archived {project.slug}")
    if count := archiving.being_recorded(project):
        runs = "1 recorded run has" if count == 1 else f"{count} recorded runs have"
        command.stderr.write(f"{runs} not ended; events for archived projects are refused")
