"""The console script: every subcommand is a management command. It prints `--help` and `--version` itself."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable

EXIT_BAD_SETTINGS = 78  # EX_CONFIG of sysexits.h
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
#: Aliases of commands. `import` is a Python keyword, so no module can have this name.
ALIASES = {"import": "import_run"}


def main() -> None:
    """Run the command in `sys.argv`. Invalid settings end it with exit code 78."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentops.settings")
    try:
        if not _print_without_settings(sys.argv[1:]):
            _run()
    except KeyboardInterrupt:
        # Also during loading, where a traceback would look like a bug.
        raise SystemExit(EXIT_INTERRUPTED) from None
    finally:
        # The last garbage collection runs after extension modules are unloaded. Freeing an object of pydantic-core then
        # causes a segmentation fault, so objects are frozen before.
        gc.freeze()


def _print_without_settings(arguments: list[str]) -> bool:
    """Print the overview or the version, if that is all that is requested."""
    if arguments not in ([], ["help"], ["--help"], ["-h"], ["--version"]):
        return False
    print(version_line() if arguments == ["--version"] else overview())
    return True


def _run() -> None:
    """Run the management command in `sys.argv`."""
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    try:
        execute_from_command_line(sys.argv[:1] + [ALIASES.get(name, name) for name in sys.argv[1:2]] + sys.argv[2:])
    except ImproperlyConfigured as error:
        print(f"agentops: invalid setting: {error}", file=sys.stderr)
        raise SystemExit(EXIT_BAD_SETTINGS) from None


# --- Help and version, which need neither settings nor a database ---

#: Topic → its commands, in the order in which new users need them, with their purpose.
TOPICS = {
    "Everyday": {
        "up": "Serve the site and execute its runs on this machine, until Ctrl-C",
        "run": "Start runs, watch and control them",
        "agent": "Define agents and show them",
        "flow": "Define flows, run them, watch and control their runs",
        "approvals": "List what waits for a person, and change approval rules",
        "project": "Choose the project of commands; create and change projects",
        "watch": "Follow the sessions of agent programs on this machine",
        "import_run": "Import transcripts of other agent programs as runs",
    },
    "Runs": {
        "replay": "Play the stored events of a run again, read-only",
        "export": "Write runs, or the list of a project's runs, as files",
        "imports": "List the uploaded files of a project, and cancel their imports",
        "mcp": "Let a coding agent on this machine look into runs, as an MCP server",
    },
    "Projects": {
        "schedule": "Start agents and flows at due times, and see what became of each",
        "alert": "List the alerts of a project, change its alert rules, and mute",
        "member": "List, add and remove the members of a project, and change their roles",
        "key": "Create, list, rotate and revoke API keys",
        "budget": "Show or change the daily budgets of a project",
        "price": "Show or change the prices of a project for models",
        "sink": "Send events to telemetry backends and webhooks, and see what they refused",
    },
    "Extending": {
        "tools": "List the tools that agents can call, and where they come from",
        "extensions": "List tools, providers, hooks, importers, sinks and agents of packages, and where they come from",
        "record_fixtures": "Record runs as fixtures, one file for each agent",
        "verify_fixtures": "Check that fixtures can be played and hold no secrets",
        "fixture": "Convert and check recordings for the fixture provider",
    },
    "Operation": {
        "runserver": "As up, for development: starts again when the code changes",
        "serve": "Serve pages, API and streams; workers run separately",
        "worker": "Execute queued runs until SIGTERM",
        "migrate": "Bring the database to the schema of this version",
        "backup": "Copy a SQLite database, also while the site is up",
        "post_restore": "Make a database safe to use after a restore from a backup",
        "retention": "Delete runs whose retention has ended",
        "search_index": "Show the state of the search index, or rebuild it",
        "check_runs": "Replay the events of runs and compare the result with their rows",
        "check_invariants": "Check the invariants over all stored rows",
        "second_factor": "Remove the second factor of a user who has lost it",
        "completion": "Print a completion script for bash, zsh or fish",
    },
}
#: Command → its purpose.
COMMANDS = {name: purpose for topic in TOPICS.values() for name, purpose in topic.items()}
#: Packages of Django whose management commands work here.
DJANGO = ("core", "contrib/auth", "contrib/contenttypes", "contrib/sessions", "contrib/staticfiles")
#: The commands of Django that are used most.
COMMON_DJANGO = ("changepassword", "createsuperuser", "dbshell", "makemigrations", "shell")
#: Maximum width of the lines of the overview, and the width of the topics.
WIDTH = 80
TOPIC_WIDTH = 13


def overview() -> str:
    """Return the help text, which fits a terminal of 80 columns and 24 lines."""
    everyday, *others = TOPICS.items()
    return "\n".join(
        [
            "Usage: agentops COMMAND [OPTIONS]",
            "",
            "Run AI agents durably, watch them, and resume them.",
            "",
            *(f"  {typed(name).ljust(TOPIC_WIDTH - 2)}{purpose}" for name, purpose in everyday[1].items()),
            "",
            *(line for topic, commands in others for line in _wrap(topic, commands)),
            *_wrap("Django", [*COMMON_DJANGO, "…"]),
            "",
            "`agentops COMMAND --help` explains one; `agentops help --commands` lists all.",
        ]
    )


def typed(name: str) -> str:
    """Return the name of a command as people type it: its alias, if it has one."""
    return next((alias for alias, command in ALIASES.items() if command == name), name)


def django_commands() -> set[str]:
    """Return the names of Django's commands that work here and that this project does not replace."""
    import django
    from django.core.management import find_commands

    root = django.__path__[0]
    names = {name for package in DJANGO for name in find_commands(f"{root}/{package}/management")}
    return names - COMMANDS.keys()


def version_line() -> str:
    """Return the versions of agentops and Django."""
    from importlib.metadata import version

    import django

    return f"agentops {version('agentops')} (Django {django.get_version()})"


def _wrap(topic: str, names: Iterable[str]) -> list[str]:
    """Return a topic and its commands as lines of at most `WIDTH` characters."""
    lines = [topic.ljust(TOPIC_WIDTH - 1)]
    for name in names:
        if len(lines[-1]) + len(name) + 2 > WIDTH:
            lines.append(" " * (TOPIC_WIDTH - 1))
        lines[-1] += f" {name}"
    return lines
