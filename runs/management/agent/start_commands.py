"""`agentops agent apply` and `run`: define an agent, start a run, and wait for its end."""

from __future__ import annotations

import time
from typing import Any

from django.core.management.base import CommandError

from agentops.accounts.access import Action
from agentops.accounts.command_base import (
    EXIT_INTERRUPTED,
    EXIT_INVALID,
    EXIT_USAGE,
    AgentopsCommand,
    operator,
    printable,
)
from agentops.accounts.current_project import chosen_project
from runs.actions import agent_definitions, run_actions
from runs.agents.definition import json_path
from runs.errors import InvalidAgent
from runs.lifecycle import inbox
from runs.lifecycle.creation import UserTurn
from runs.management.agent.arguments import clean_argument, read_definition, read_text
from runs.management.agent.run_table import refresh, require_completed, row_of, with_reason
from runs.models import Agent, AgentRun
from runs.statuses import LIVE

#: Seconds between two looks at the status of a run.
POLL_S = 0.25


def apply(command: AgentopsCommand, options: dict[str, Any]) -> None:
    project = chosen_project(options, Action.CONFIGURE)
    definition = read_definition(options["file"])
    try:
        agent, outcome = agent_definitions.apply(project, definition, by=operator())
    except InvalidAgent as error:
        at = json_path(error.data["pointer"], definition)
        raise CommandError(printable(f"{options['file']}: {at}: {error}"), returncode=EXIT_INVALID) from error
    if options["json"]:
        facts = {"outcome": outcome, "id": agent.pk, "project": project.slug}
        command.write_json({**facts, **agent.frozen(), **agent.placement})
    else:
        command.write_table(["outcome", "agent", "version"], [(outcome, agent.slug, agent.version)])


def run(command: AgentopsCommand, options: dict[str, Any]) -> None:
    project = chosen_project(options, Action.OPERATE)
    agent = agent_definitions.find(project, options["agent_id"])
    new_run = run_actions.create(
        operator(),
        project,
        agent,
        prompt_of(agent, options),
        max_steps=options["max_steps"],
        title=options["title"],
        labels=list(dict.fromkeys(options["label"])),
    )
    if not options["json"]:
        command.stdout.write(str(new_run.pk))
        command.stdout.flush()
    if options["wait"] is not None:
        _wait(command, new_run, options["wait"], as_json=options["json"])
    elif options["json"]:
        command.write_json(row_of(new_run))


def _wait(command: AgentopsCommand, run: AgentRun, seconds: float, *, as_json: bool) -> None:
    """Wait until the run is no longer live, and print its state. Interrupting the wait does not affect the run.

    Raises `CommandError` unless the run has completed.
    """
    until = time.monotonic() + seconds
    interrupted = False
    try:
        while refresh(run).state in LIVE and time.monotonic() < until:
            time.sleep(min(POLL_S, max(until - time.monotonic(), 0)))
    except KeyboardInterrupt:
        interrupted = True
    facts = row_of(run)
    if as_json:
        command.write_json(facts)
    else:
        command.stdout.write(with_reason(facts))
    if interrupted:
        raise SystemExit(EXIT_INTERRUPTED)
    require_completed(run)


def prompt_of(agent: Agent, options: dict[str, Any]) -> UserTurn:
    """Return the first message of a run: the given prompt, or the prompt of the agent's recording."""
    if options["prompt"] is not None:
        return str(options["prompt"])
    if options["prompt_file"] is not None:
        text = clean_argument(read_text(options["prompt_file"]))
        if len(text) > inbox.MAX_MESSAGE:
            problem = f"{options['prompt_file']}: a prompt must have at most {inbox.MAX_MESSAGE} characters"
            raise CommandError(problem, returncode=EXIT_INVALID)
        return text
    recorded = agent_definitions.recorded_prompt(agent)
    if recorded is None:
        raise CommandError("the agent has no recorded prompt: pass --prompt or --prompt-file", returncode=EXIT_USAGE)
    return recorded
