"""The Django app of projects."""

from __future__ import annotations

from django.apps import AppConfig


class ProjectsConfig(AppConfig):
    """Configuration of the app."""

    name = "agentops.projects"
    label = "projects"

    def ready(self) -> None:
        """Connect the signal receivers."""
        from agentops.projects import revocation
        from agentops.projects.login import sessions  # noqa: F401 - connects a receiver

        revocation.watch_rows()
