"""`agentops project`: create, list, change, archive and delete projects."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from datetime import datetime
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from agentops.accounts import current_project, terminal
from agentops.accounts.access import SYSTEM, Action, projects_for
from agentops.accounts.command_base import (
    EXIT_NOT_FOUND,
    EXIT_REFUSED,
    EXIT_UNREADABLE,
    EXIT_USAGE,
    AddSubcommand,
    AgentopsCommand,
    operator,
)
from agentops.accounts.memberships import change_project, create_project, unarchive_project
from agentops.accounts.models import Project
from agentops.accounts.names import MOST_RUNNING
from runs.actions import project_changes
from runs.management.output import show_progress, write_result
from runs.upkeep import project_removal

#: The fields of a project in JSON.
FIELDS = (
    *("id", "slug", "name", "description", "archived_at", "retention_days", "max_running"),
    *("exports_telemetry", "masks_model_input", "created_at"),
)


class Command(AgentopsCommand):
    help = (
        "Choose the project of commands; create, list, change, archive and delete projects. Each has its own agents,"
        " runs, keys and members."
    )

    def subcommands(self, add: AddSubcommand) -> None:
        create = add("create", self.create, help="Create a project.")
        create.add_argument("slug", metavar="SLUG", help="short name for URLs: a-z, 0-9 and dashes")
        create.add_argument("--name", metavar="N", help="display name (default: the slug)")
        changed = add("change", self.change, help="Change the name, the telemetry or the limit of a project.")
        archived = add(
            "archive", self.archive, help="Make a project read-only and hide it from menus. Nothing is deleted."
        )
        unarchived = add("unarchive", self.unarchive, help="Undo archive.")
        deleted = add("delete", self.delete, help="Delete an archived project with all its runs, for good.")
        for parser in (changed, archived, unarchived, deleted):
            parser.add_argument("slug", metavar="SLUG", help="slug or ID")
        changed.add_argument("--name", metavar="N", help="display name")
        changed.add_argument("--description", metavar="TEXT", help="shown on the list of projects")
        changed.add_argument(
            "--telemetry", choices=("on", "off"), help="whether its events go to sinks, those of the site included"
        )
        changed.add_argument(
            "--max-running", metavar="N", type=_running_limit, help='runs at the same time; "none" removes the limit'
        )
        deleted.add_argument("--confirm", metavar="SLUG", help="the slug, to confirm (default: it is asked for)")
        deleted.add_argument("--dry-run", action="store_true", help="count what would be deleted, and delete nothing")
        ls = add("ls", self.ls, help="List the projects.")
        used = add("use", self.use, help="Choose the project of commands that are called without --project.")
        used.add_argument("slug", metavar="SLUG", nargs="?", help="slug or ID")
        used.add_argument("--none", action="store_true", help="choose no project")
        shown = add("show", self.show, help="Show a project, or the one in use and where that is from.")
        shown.add_argument("slug", metavar="SLUG", nargs="?", help="slug or ID (default: the project in use)")
        for parser in (create, changed, deleted, ls, shown):
            parser.add_argument("--json", action="store_true", help="print JSON")

    def create(self, options: dict[str, Any]) -> None:
        slug, name = options["slug"], options["name"]
        self._write(create_project(slug, slug if name is None else name, actor=operator()), options)

    def change(self, options: dict[str, Any]) -> None:
        project = current_project.named_project(options["slug"], Action.MANAGE)
        changes = {name: options[name] for name in ("name", "description") if options[name] is not None}
        if options["telemetry"] is not None:
            changes["exports_telemetry"] = options["telemetry"] == "on"
        if options["max_running"] is not None:
            changes["max_running"] = options["max_running"] or None
        self._write(change_project(project, **changes, actor=operator()), options)

    def archive(self, options: dict[str, Any]) -> None:
        project = project_changes.archive(current_project.named_project(options["slug"], Action.MANAGE), by=operator())
        self.stdout.write(f"archived {project.slug}")
        if count := project_changes.being_recorded(project):
            runs = "1 recorded run has" if count == 1 else f"{count} recorded runs have"
            self.stderr.write(f"{runs} not ended; events for archived projects are refused")

    def unarchive(self, options: dict[str, Any]) -> None:
        project = unarchive_project(current_project.named_project(options["slug"], Action.MANAGE), actor=operator())
        self.stdout.write(f"unarchived {project.slug}")

    def delete(self, options: dict[str, Any]) -> None:
        """Delete the project `slug` and wait until its rows are deleted. Workers finish an interrupted deletion."""
        project = current_project.named_project(options["slug"], Action.MANAGE)
        preview = project_changes.preview(project)
        if options["dry_run"]:
            _show(self, project, preview, is_json=options["json"])
            return
        if preview.refusal is not None:
            raise preview.refusal
        confirmation = options["confirm"] if options["confirm"] is not None else _ask(self, project, preview)
        name = project.slug
        project_changes.delete_project(project, confirmation=confirmation, by=operator())
        _delete_rows(self, project_removal.pending().get(pk=project.pk), name)
        write_result(self, f"deleted {name}", options, {"slug": name, "counts": preview.counts})

    def ls(self, options: dict[str, Any]) -> None:
        projects = list(projects_for(SYSTEM).order_by("slug"))
        if options["json"]:
            self.write_json([_row(project) for project in projects])
        else:
            self._write_table(projects)

    def use(self, options: dict[str, Any]) -> None:
        """Store the choice. A variable of the environment comes before it, which a warning says."""
        if options["none"] == (options["slug"] is not None):
            raise CommandError("pass either a project or --none", returncode=EXIT_USAGE)
        project = None if options["none"] else current_project.named_project(options["slug"], Action.READ)
        file = current_project.choice_file()
        try:
            current_project.use(project)
        except OSError as error:
            raise CommandError(f"{file}: {error.strerror}", returncode=EXIT_UNREADABLE) from None
        self.stdout.write("no project in use" if project is None else f"using {project.slug} ({file})")
        if settings.AGENTOPS_PROJECT:
            self.stderr.write(f"AGENTOPS_PROJECT is set, and comes first: {settings.AGENTOPS_PROJECT}")

    def show(self, options: dict[str, Any]) -> None:
        slug, source = (options["slug"], "") if options["slug"] is not None else current_project.default_slug()
        if not slug:
            problem = "no project in use: choose one with `agentops project use SLUG`"
            raise CommandError(problem, returncode=EXIT_NOT_FOUND)
        row = _row(current_project.named_project(slug, Action.READ, source=f" (from {source})" if source else ""))
        if options["json"]:
            self.write_json(row)
            return
        moment = terminal.absolute if self.stdout.isatty() else datetime.isoformat
        facts = [
            (name.replace("_", " "), moment(value) if isinstance(value, datetime) else str(value))
            for name, value in row.items()
            if value not in (None, "")
        ]
        self.write_table((), [*facts, *([("chosen by", source)] if source else [])])

    def _write(self, project: Project, options: dict[str, Any]) -> None:
        if options["json"]:
            self.write_json(_row(project))
        else:
            self._write_table([project])

    def _write_table(self, projects: list[Project]) -> None:
        self.write_table(["slug", "id", "name"], [(p.slug, str(p.id), p.name) for p in projects])


def _running_limit(text: str) -> int:
    """Return the number of runs that may run at the same time; 0 for "none". Raises `ArgumentTypeError`."""
    if text == "none":
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= MOST_RUNNING):
        raise ArgumentTypeError(f'{text[:20]!r} is not a number from 1 to {MOST_RUNNING}, and not "none"')
    return int(text)


def _row(project: Project) -> dict[str, object]:
    return {field: getattr(project, field) for field in FIELDS}


# --- Deletion ---


def _show(
    command: AgentopsCommand, project: Project, preview: project_changes.DeletionPreview, *, is_json: bool
) -> None:
    """Print what would be deleted, and why it cannot be deleted now."""
    refusal = None if preview.refusal is None else {"code": preview.refusal.code, "detail": str(preview.refusal)}
    if is_json:
        command.write_json({"slug": project.slug, "counts": preview.counts, "refusal": refusal})
        return
    command.write_table(["rows", "count"], [(name.replace("_", " "), count) for name, count in preview.counts.items()])
    if refusal:
        command.stdout.write(f"cannot be deleted now: {refusal['detail']}")


def _ask(command: AgentopsCommand, project: Project, preview: project_changes.DeletionPreview) -> str:
    """Show what would be deleted, and return the confirmation that the user enters.

    Raises `CommandError` without a terminal.
    """
    if not sys.stdin.isatty():
        raise CommandError(f"this cannot be undone: pass --confirm {project.slug}", returncode=EXIT_REFUSED)
    counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in preview.counts.items() if count)
    command.stderr.write(f"This deletes {project.name} for good: {counts or 'it is empty'}.")
    command.stderr.write(f"Enter {project.slug} to confirm: ", ending="")
    command.stderr.flush()
    return sys.stdin.readline().strip()


def _delete_rows(command: AgentopsCommand, project: Project, name: str) -> None:
    """Delete the rows of a deleted project, and show the progress. Raises `CommandError` if rows are left."""
    batches, before = 0, -1
    # A worker may be deleting the project too, so one pass can leave rows. Repeat as long as a pass deletes something.
    while project_removal.pending().filter(pk=project.pk).exists() and batches > before:
        before = batches
        for _ in project_removal.remove(project):
            batches += 1
            show_progress(command, f"{name}: {batches} batches deleted")
    if command.stderr.isatty():
        command.stderr.write("")
    if project_removal.pending().filter(pk=project.pk).exists():
        raise CommandError(f"{name} is hidden, and workers delete the rest of it", returncode=EXIT_REFUSED)
