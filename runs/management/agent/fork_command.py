"""`agentops agent fork`: read the changes of the agent from the options, and fork the run."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError

from agentops.accounts.management.base import EXIT_INVALID, operator, printable
from runs.actions import run_actions
from runs.errors import InvalidAgent
from runs.management.agent.input_files import clean_argument, read_definition, read_text
from runs.models import AgentRun


def fork(run: AgentRun, options: dict[str, Any]) -> AgentRun:
    changes = {name: options[name] for name in ("model", "max_steps") if options[name] is not None}
    if options["instructions_file"] is not None:
        changes["instructions"] = clean_argument(read_text(options["instructions_file"]))
    if options["settings_file"] is not None:
        changes["settings"] = read_definition(options["settings_file"])
    try:
        return run_actions.fork(operator(), run, step=options["step"], message=options["message"], agent=changes)
    except InvalidAgent as error:
        raise CommandError(printable(f"{error.data['pointer']}: {error}"), returncode=EXIT_INVALID) from error
