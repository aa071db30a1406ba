"""`agentops project`: create, list, change, archive and delete projects."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import Any

from agentops.accounts.access import SYSTEM, Action, project_for, projects_for
from agentops.accounts.management.base import AddSubcommand, AgentopsCommand, operator
from agentops.accounts.memberships import change_project, create_project, unarchive_project
from agentops.accounts.models import Project
from agentops.accounts.names import MOST_RUNNING


class Command(AgentopsCommand):
    help = "Create, list, change, archive and delete projects. Each has its own agents, runs, keys and members."

    def subcommands(self, add: AddSubcommand) -> None:
        create = add("create", self.create, help="Create a project.")
        create.add_argument("slug", metavar="SLUG", help="short name for URLs: a-z, 0-9 and dashes")
        create.add_argument("--name", metavar="N", help="display name (default: the slug)")
        create.add_argument("--json", action="store_true", help="print JSON")
        changed = add("change", self.change, help="Change the name, the telemetry or the limit of a project.")
        changed.add_argument("slug", metavar="SLUG", help="slug or ID")
        changed.add_argument("--name", metavar="N", help="display name")
        changed.add_argument("--description", metavar="TEXT", help="shown on the list of projects")
        changed.add_argument(
            "--telemetry", choices=("on", "off"), help="whether its events go to sinks, those of the site included"
        )
        changed.add_argument(
            "--max-running", metavar="N", type=_places, help='runs at the same time; "none" removes the limit'
        )
        changed.add_argument("--json", action="store_true", help="print JSON")
        archived = add(
            "archive",
            "runs.management.project_commands.archive",
            help="Make a project read-only and hide it from menus. Nothing is deleted.",
        )
        archived.add_argument("slug", metavar="SLUG", help="slug or ID")
        unarchived = add("unarchive", self.unarchive, help="Undo archive.")
        unarchived.add_argument("slug", metavar="SLUG", help="slug or ID")
        deleted = add(
            "delete",
            "runs.management.project_commands.delete",
            help="Delete an archived project with all its runs, for good.",
        )
        deleted.add_argument("slug", metavar="SLUG", help="slug or ID")
        deleted.add_argument("--confirm", metavar="SLUG", help="the slug, to confirm (default: it is asked for)")
        deleted.add_argument("--dry-run", action="store_true", help="count what would be deleted, and delete nothing")
        deleted.add_argument("--json", action="store_true", help="print JSON")
        ls = add("ls", self.ls, help="List the projects.")
        ls.add_argument("--json", action="store_true", help="print JSON")

    def create(self, options: dict[str, Any]) -> None:
        slug, name = options["slug"], options["name"]
        project = create_project(slug, slug if name is None else name, actor=operator())
        if options["json"]:
            self.write_json(_row(project))
        else:
            self._write([project])

    def change(self, options: dict[str, Any]) -> None:
        project = project_for(SYSTEM, options["slug"], Action.MANAGE)
        changes = {name: options[name] for name in ("name", "description") if options[name] is not None}
        if options["telemetry"] is not None:
            changes["exports_telemetry"] = options["telemetry"] == "on"
        if options["max_running"] is not None:
            changes["max_running"] = options["max_running"] or None
        project = change_project(project, **changes, actor=operator())
        if options["json"]:
            self.write_json(_row(project))
        else:
            self._write([project])

    def unarchive(self, options: dict[str, Any]) -> None:
        project = unarchive_project(project_for(SYSTEM, options["slug"], Action.MANAGE), actor=operator())
        self.stdout.write(f"unarchived {project.slug}")

    def ls(self, options: dict[str, Any]) -> None:
        projects = list(projects_for(SYSTEM).order_by("slug"))
        if options["json"]:
            self.write_json([_row(project) for project in projects])
        else:
            self._write(projects)

    def _write(self, projects: list[Project]) -> None:
        self.write_table(["slug", "id", "name"], [(p.slug, p.id, p.name) for p in projects])


def _places(text: str) -> int:
    """Return a limit of running runs; 0 for none. Raise ArgumentTypeError."""
    if text == "none":
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= MOST_RUNNING):
        raise ArgumentTypeError(f'{text[:20]!r} is not a number from 1 to {MOST_RUNNING}, and not "none"')
    return int(text)


def _row(project: Project) -> dict[str, object]:
    return {
        "id": project.id,
        "slug": project.slug,
        "name": project.name,
        "description": project.description,
        "archived_at": project.archived_at,
        "retention_days": project.retention_days,
        "max_running": project.max_running,
        "exports_telemetry": project.exports_telemetry,
        "masks_model_input": project.masks_model_input,
        "created_at": project.created_at,
    }
