from __future__ import annotations

from django.apps import AppConfig


class ProjectsConfig(AppConfig):
    name = "agentops.projects"
    label = "projects"

    def ready(self) -> None:
        from agentops.projects import revocation
        from agentops.projects.login import sessions  # noqa: F401 - sessions notes when somebody logs in

        revocation.watch_rows()
