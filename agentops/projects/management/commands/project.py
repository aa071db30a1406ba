"""`agentops project`: create and list projects."""

from __future__ import annotations

from typing import Any

from agentops.projects.access import SYSTEM, projects_for
from agentops.projects.management.base import AddSubcommand, AgentopsCommand
from agentops.projects.memberships import create_project
from agentops.projects.models import Project


class Command(AgentopsCommand):
    help = "Create and list projects. Each has its own agents, runs, keys and members."

    def subcommands(self, add: AddSubcommand) -> None:
        create = add("create", self.create, help="Create a project.")
        create.add_argument("slug", metavar="SLUG", help="short name for URLs: a-z, 0-9 and dashes")
        create.add_argument("--name", metavar="N", help="display name (default: the slug)")
        create.add_argument("--json", action="store_true", help="print JSON")
        ls = add("ls", self.ls, help="List the projects.")
        ls.add_argument("--json", action="store_true", help="print JSON")

    def create(self, options: dict[str, Any]) -> None:
        slug, name = options["slug"], options["name"]
        project = create_project(slug, slug if name is None else name, actor=SYSTEM)
        if options["json"]:
            self.write_json(_row(project))
        else:
            self._write([project])

    def ls(self, options: dict[str, Any]) -> None:
        projects = list(projects_for(SYSTEM).order_by("slug"))
        if options["json"]:
            self.write_json([_row(project) for project in projects])
        else:
            self._write(projects)

    def _write(self, projects: list[Project]) -> None:
        self.write_table(["slug", "id", "name"], [(p.slug, p.id, p.name) for p in projects])


def _row(project: Project) -> dict[str, object]:
    return {
        "id": project.id,
        "slug": project.slug,
        "name": project.name,
        "retention_days": project.retention_days,
        "masks_model_input": project.masks_model_input,
        "created_at": project.created_at,
    }
