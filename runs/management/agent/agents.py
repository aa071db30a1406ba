"""`agentops agent ls`, `list`, `show` and `versions`: the definitions of agents, redacted."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

from django.core.management.base import CommandError

from agentops.accounts.access import Action
from agentops.accounts.command_base import EXIT_AMBIGUOUS, EXIT_NOT_FOUND, AgentopsCommand
from agentops.accounts.command_parser import did_you_mean
from agentops.accounts.current_project import project_filter
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.redaction.redact import JSON
from runs.actions import agent_definitions
from runs.errors import RunNotFound
from runs.management.agent import run_table
from runs.management.agent import show as run_show
from runs.management.agent.arguments import clean_argument
from runs.management.agent.references import find_run
from runs.management.agent.run_table import redacted
from runs.management.output import write_rows
from runs.models import Agent, AgentRun
from runs.queries.json_columns import to_json


def ls(command: AgentopsCommand, options: dict[str, Any]) -> None:
    """List agents for people. For programs, list runs, as this command did before `run ls` existed."""
    if command.stdout.isatty() and not (options["json"] or options["status"] or options["limit"]):
        list_agents(command, options)
        return
    if command.stderr.isatty():
        command.stderr.write("agentops: these are runs: use `run ls` for runs, and `agent list` for agents")
    run_table.ls(command, {**options, "all_projects": True})


def list_agents(command: AgentopsCommand, options: dict[str, Any]) -> None:
    agents = Agent.objects.select_related("project").order_by("project__slug", "slug")
    if (project := project_filter(options, Action.READ)) is not None:
        agents = agents.filter(project=project)
    if options["json"]:
        command.write_json([_facts(agent, agent.frozen()) for agent in agents])
        return
    headers = ["project", "agent", "version", "provider", "model", "tools", "max steps", "queue"]
    optional = ("queue", "max steps", "version", "provider")
    command.write_table(headers, [_cells(agent) for agent in agents], optional=optional)


def show(command: AgentopsCommand, options: dict[str, Any]) -> None:
    """Show an agent; or a run, as this command did before `run show` existed."""
    if options["number"] is None and (run := _run_of(options["agent"])) is not None:
        run_show.show(command, {**options, "run": str(run.pk)})
        return
    agent = _find(options, "run not found: {}, and no agent has this name")
    number = agent.version if options["number"] is None else options["number"]
    definition = agent_definitions.definition_at(agent, number) if 0 < number < 2**31 else None
    if definition is None:
        raise CommandError(f"agent {agent.slug} has no version {number}", returncode=EXIT_NOT_FOUND)
    facts = _facts(agent, {**definition, "version": number})
    if options["json"]:
        command.write_json(facts)
    else:
        command.write_table((), _lines(facts))


def versions(command: AgentopsCommand, options: dict[str, Any]) -> None:
    rows = [
        {
            "version": version.number,
            "changed": ", ".join(version.changed),
            "created_by": version.created_by,
            "created_at": version.created_at,
        }
        for version in agent_definitions.versions_of(_find(options))
    ]
    write_rows(command, rows, options)


def _run_of(reference: str) -> AgentRun | None:
    with suppress(RunNotFound):
        return find_run(reference)
    return None


def _find(options: dict[str, Any], problem: str = "agent not found: {}") -> Agent:
    """Return the agent with this name in the project of the command; without one, in any project.

    Raises `CommandError` with `problem` for no agent, and for agents of several projects.
    """
    slug, agents = clean_argument(options["agent"]), Agent.objects.select_related("project")
    if (project := project_filter(options, Action.READ)) is not None:
        agents = agents.filter(project=project)
    found = list(agents.filter(slug=slug).order_by("project__slug")[:10])
    if not found:
        similar = did_you_mean(slug, agents.values_list("slug", flat=True))
        raise CommandError(problem.format(repr(slug[:64])) + similar, returncode=EXIT_NOT_FOUND)
    if len(found) > 1:
        projects = ", ".join(agent.project.slug for agent in found)
        problem = f"{slug!r} is an agent of more than one project: pass --project, one of {projects}"
        raise CommandError(problem, returncode=EXIT_AMBIGUOUS)
    return found[0]


def _facts(agent: Agent, frozen: dict[str, Any]) -> dict[str, Any]:
    """Return a definition with secrets redacted."""
    cleaned = cast("dict[str, Any]", REDACTOR.clean(cast("JSON", frozen))[0])
    return {"id": agent.pk, "project": agent.project.slug, **cleaned, **agent.placement}


def _lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the fields as pairs of a name and a text, without empty ones."""
    texts = {
        name: value if isinstance(value, str) else to_json(value) if isinstance(value, (dict, list)) else str(value)
        for name, value in facts.items()
        if value not in (None, "", [], {})
    }
    return [(name.replace("_", " "), text) for name, text in texts.items()]


def _cells(agent: Agent) -> Sequence[object]:
    tools, model = redacted(", ".join(str(tool) for tool in agent.tools)), redacted(agent.model)
    return agent.project.slug, agent.slug, agent.version, agent.provider, model, tools, agent.max_steps, agent.queue
