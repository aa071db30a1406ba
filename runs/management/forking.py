"""`agentops agent fork`: what is said of the new run, and the settings file that its agent is given.

A door's part: may import identity, runs' models and the engine's steering.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from agentops.projects.management.base import EXIT_INVALID, printable
from runs.engine import steering
from runs.errors import InvalidAgent
from runs.management import arguments
from runs.management.reading import STDIN, legible, read_definition, read_text
from runs.management.references import operator
from runs.models import AgentRun


def add_options(fork: CommandParser) -> None:
    fork.add_argument("--step", metavar="N", type=arguments.whole, required=True, help="after this step")
    fork.add_argument("--message", metavar="M", type=legible, help="the next user turn")
    fork.add_argument("--model", metavar="MODEL", type=legible, help="(default: as before)")
    fork.add_argument(
        "--instructions-file", metavar="F", help=f"instructions in place of the earlier ones; {STDIN}: standard input"
    )
    fork.add_argument("--max-steps", metavar="N", type=arguments.whole, help="of the new run (default: as the old one)")
    fork.add_argument("--settings-file", metavar="F", help="settings in place of the earlier ones, as TOML or JSON")


def fork(run: AgentRun, options: dict[str, Any]) -> AgentRun:
    changes = {name: options[name] for name in ("model", "max_steps") if options[name] is not None}
    if options["instructions_file"] is not None:
        changes["instructions"] = legible(read_text(options["instructions_file"]))
    if options["settings_file"] is not None:
        changes["settings"] = read_definition(options["settings_file"])
    try:
        return steering.fork(operator(), run, step=options["step"], message=options["message"], agent=changes)
    except InvalidAgent as error:
        raise CommandError(printable(f"{error.data['pointer']}: {error}"), returncode=EXIT_INVALID) from error
