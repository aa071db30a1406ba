"""`agentops project delete`, which lists the data and asks for the slug, and `agentops project archive`."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import CommandError

from agentops.accounts.access import SYSTEM, Action, project_for
from agentops.accounts.management.base import EXIT_REFUSED, AgentopsCommand, operator
from agentops.accounts.models import Project
from runs.actions import archiving, project_deletion
from runs.upkeep import project_removal


def delete(command: AgentopsCommand, options: dict[str, Any]) -> None:
    """Delete the project `slug` and wait until its rows are deleted. Workers finish an interrupted deletion."""
    project = project_for(SYSTEM, options["slug"], Action.MANAGE)
    found = project_deletion.preview(project)
    if options["dry_run"]:
        _show(command, project, found, is_json=options["json"])
        return
    if found.refusal is not None:
        raise found.refusal
    confirmation = options["confirm"] if options["confirm"] is not None else _asked(command, project, found)
    name = project.slug
    project_deletion.delete_project(project, confirmation=confirmation, by=operator())
    _remove(command, project_removal.pending().get(pk=project.pk), name)
    if options["json"]:
        command.write_json({"slug": name, "counts": found.counts})
    else:
        command.stdout.write(f"deleted {name}")


def _show(
    command: AgentopsCommand, project: Project, found: project_deletion.DeletionPreview, *, is_json: bool
) -> None:
    refusal = None if found.refusal is None else {"code": found.refusal.code, "detail": str(found.refusal)}
    if is_json:
        command.write_json({"slug": project.slug, "counts": found.counts, "refusal": refusal})
        return
    command.write_table(["rows", "count"], [(name.replace("_", " "), count) for name, count in found.counts.items()])
    if refusal:
        command.stdout.write(f"cannot be deleted now: {refusal['detail']}")


def _asked(command: AgentopsCommand, project: Project, found: project_deletion.DeletionPreview) -> str:
    """Show on a terminal what would be deleted, and return the confirmation that the user enters."""
    if not sys.stdin.isatty():
        raise CommandError(f"this cannot be undone: pass --confirm {project.slug}", returncode=EXIT_REFUSED)
    counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in found.counts.items() if count)
    command.stderr.write(f"This deletes {project.name} for good: {counts or 'it is empty'}.")
    command.stderr.write(f"Enter {project.slug} to confirm: ", ending="")
    command.stderr.flush()
    return sys.stdin.readline().strip()


def _remove(command: AgentopsCommand, project: Project, name: str) -> None:
    shows_progress = command.stderr.isatty()
    batches, before = 0, -1
    # Workers may delete the project too: a process skips a deletion that another process has just begun.
    while project_removal.pending().filter(pk=project.pk).exists() and batches > before:
        before = batches
        for _ in project_removal.remove(project):
            batches += 1
            if shows_progress:
                command.stderr.write(f"\r{name}: {batches} batches deleted", ending="")
                command.stderr.flush()
    if shows_progress:
        command.stderr.write("")
    if project_removal.pending().filter(pk=project.pk).exists():
        raise CommandError(f"{name} is hidden, and workers delete the rest of it", returncode=EXIT_REFUSED)


# --- Archive ---


def archive(command: AgentopsCommand, options: dict[str, Any]) -> None:
    """Archive the project `slug`. Raise NotArchivable."""
    project = archiving.archive(project_for(SYSTEM, options["slug"], Action.MANAGE), by=operator())
    command.stdout.write(f"archived {project.slug}")
    if count := archiving.being_recorded(project):
        runs = "1 recorded run has" if count == 1 else f"{count} recorded runs have"
        command.stderr.write(f"{runs} not ended; events for archived projects are refused")
