"""The project that a command acts on: the option `--project`, AGENTOPS_PROJECT, or the choice of `project use`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from agentops.accounts.access import SYSTEM, Action, project_for, projects_for
from agentops.accounts.command_base import EXIT_USAGE
from agentops.accounts.command_parser import ProjectOption, ProjectOptionOrWord, did_you_mean
from agentops.accounts.errors import ProjectNotFound
from agentops.accounts.models import Project

#: Maximum bytes of the file with the choice.
MAX_FILE = 256


# --- Options ---


def add_project(*parsers: CommandParser, takes_word: bool = False) -> None:
    """Add `--project` to commands that act on one project. With `takes_word`, the first word may be the project."""
    for parser in parsers:
        _add(parser, "slug or ID (default: see `agentops project use`)", takes_word=takes_word)


def add_project_filter(parser: CommandParser, *, takes_word: bool = False) -> None:
    """Add `--project` and `--all-projects` to a command that lists rows of one project or of all."""
    _add(parser, "slug or ID (default: see `agentops project use`, or all projects)", takes_word=takes_word)
    parser.add_argument("--all-projects", action="store_true", help="all projects, also if one is in use")


def _add(parser: CommandParser, text: str, *, takes_word: bool) -> None:
    action = ProjectOptionOrWord if takes_word else ProjectOption
    parser.add_argument("--project", metavar="SLUG", action=action, help=text)


# --- Choice ---


def chosen_project(options: Mapping[str, Any], action: Action) -> Project:
    """Return the project of a command. Raises `CommandError` without one, and what `project_for` raises."""
    project = _chosen(options, action)
    if project is None:
        problem = "no project: pass --project SLUG, or choose one with `agentops project use SLUG`"
        raise CommandError(problem, returncode=EXIT_USAGE)
    return project


def project_filter(options: Mapping[str, Any], action: Action) -> Project | None:
    """Return the project whose rows a command lists; None for all projects. Raises what `project_for` raises."""
    if options.get("all_projects") and options["project"] is None:
        return None
    return _chosen(options, action)


def named_project(slug_or_id: str, action: Action, *, source: str = "") -> Project:
    """Return the project. `ProjectNotFound` then names the value, its source, and a similar slug."""
    try:
        return project_for(SYSTEM, slug_or_id, action)
    except ProjectNotFound:
        slugs = projects_for(SYSTEM).values_list("slug", flat=True)
        problem = f"project not found: {slug_or_id[:64]!r}{source}{did_you_mean(slug_or_id, slugs)}"
        raise ProjectNotFound(problem) from None


def default_slug() -> tuple[str, str]:
    """Return the project in use without an option, and where it comes from; both are empty without one."""
    if settings.AGENTOPS_PROJECT:
        return settings.AGENTOPS_PROJECT, "AGENTOPS_PROJECT"
    slug = _read()
    return (slug, "`agentops project use`") if slug else ("", "")


def use(project: Project | None) -> None:
    """Make a project the default for commands on this `AGENTOPS_HOME`, or none. Raises `OSError`."""
    file = choice_file()
    if project is None:
        file.unlink(missing_ok=True)
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{project.slug}\n", encoding="utf-8")


def choice_file() -> Path:
    return Path(settings.AGENTOPS_HOME) / "project"


def _chosen(options: Mapping[str, Any], action: Action) -> Project | None:
    if options["project"] is not None:
        return named_project(options["project"], action)
    slug, source = default_slug()
    return named_project(slug, action, source=f" (from {source})") if slug else None


def _read() -> str:
    try:
        with choice_file().open("rb") as file:
            return file.read(MAX_FILE).decode(errors="replace").strip()
    except OSError:
        return ""
