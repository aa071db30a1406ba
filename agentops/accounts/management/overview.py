"""The output of `agentops --help`. It needs neither settings nor a database, so it is fast."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import django
from django.core.management import find_commands

#: Commands of this project, in the order in which new users need them, with their purpose.
COMMANDS = {
    "up": "Serve the site and execute its runs in one process on SQLite, until Ctrl-C",
    "agent": "Define agents, start runs, watch and control them",
    "flow": "Define flows, run them, watch and control their runs",
    "tools": "List the tools that agents can call, and where they come from",
    "extensions": "List tools, providers, hooks, importers and sinks of packages, and where they come from",
    "approvals": "List what waits for a person, and change the approval rules of a project",
    "alert": "List the alerts of a project, change its alert rules, and mute",
    "schedule": "Start agents and flows at due times, and see what became of each",
    "replay": "Play the stored events of a run again, read-only",
    "project": "Create, list, change, archive and delete projects",
    "member": "List, add and remove the members of a project, and change their roles",
    "key": "Create, list, rotate and revoke API keys",
    "runserver": "As up, for development: starts again when the code changes",
    "serve": "Serve pages, API and streams; workers run separately",
    "worker": "Execute queued runs until SIGTERM",
    "migrate": "Bring the database to the schema of this version",
    "record_fixtures": "Record runs as fixtures, one file for each agent",
    "verify_fixtures": "Check that fixtures can be played and hold no secrets",
    "fixture": "Convert and check recordings for the fixture provider",
    "watch": "Follow the sessions of agent programs on this machine",
    "mcp": "Let a coding agent on this machine look into runs, as an MCP server",
    "import_run": "Import transcripts of other agent programs as runs; also `agentops import`",
    "imports": "List the uploaded files of a project, and cancel their imports",
    "sink": "Send events to telemetry backends and webhooks, and see what they refused",
    "budget": "Show or change the daily budgets of a project",
    "price": "Show or change the prices of a project for models",
    "export": "Write runs, or the list of a project's runs, as files",
    "retention": "Delete runs whose retention has ended",
    "search_index": "Show the state of the search index, or rebuild it",
    "backup": "Copy a SQLite database, also while the site is up",
    "post_restore": "Make a database safe to use after a restore from a backup",
    "check_runs": "Replay the events of runs and compare the result with their rows",
    "check_invariants": "Check the invariants over all stored rows",
    "completion": "Print a completion script for bash, zsh or fish",
}
#: Packages of Django whose management commands work here.
DJANGO = ("core", "contrib/auth", "contrib/contenttypes", "contrib/sessions", "contrib/staticfiles")
WIDTH = 100


def text() -> str:
    """Return the help text."""
    width = max(map(len, COMMANDS)) + 2
    return "\n".join(
        [
            "Usage: agentops COMMAND [OPTIONS]",
            "",
            "Run AI agents durably, watch them, and resume them.",
            "",
            "Commands:",
            *(f"  {name.ljust(width)}{purpose}" for name, purpose in COMMANDS.items()),
            "",
            "Django's commands:",
            *_wrap(sorted(django_commands())),
            "",
            "`agentops COMMAND --help` explains a command; `agentops --version` prints the version.",
        ]
    )


def django_commands() -> set[str]:
    """Return the names of Django's commands that work here and that this project does not replace."""
    root = Path(django.__path__[0])
    names = {name for package in DJANGO for name in find_commands(str(root / package / "management"))}
    return names - COMMANDS.keys()


def version_line() -> str:
    """Return the versions of agentops and Django."""
    return f"agentops {version('agentops')} (Django {django.get_version()})"


def _wrap(names: list[str]) -> list[str]:
    lines = [""]
    for name in names:
        if len(lines[-1]) + len(name) + 2 > WIDTH:
            lines.append("")
        lines[-1] += f"  {name}"
    return lines
