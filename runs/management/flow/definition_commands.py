"""`agentops flow apply`, `ls` and `export`: definitions of flows."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandError

from agentops.projects.access import SYSTEM, Action, project_for
from agentops.projects.management.base import EXIT_INVALID, EXIT_NOT_FOUND, AgentopsCommand, operator, printable
from runs.actions.flows import flow_definitions
from runs.agents.definition_text import json_path
from runs.flows.definition.definition_problems import DefinitionProblem
from runs.management.agent.input_files import read_definition
from runs.management.agent.run_table import redacted, with_reason
from runs.management.flow.flow_run_commands import facts_of
from runs.models import Flow, FlowRun


def apply(command: AgentopsCommand, options: dict[str, Any]) -> None:
    project = project_for(SYSTEM, options["project"], Action.CONFIGURE)
    definition = read_definition(options["file"])
    problems = flow_definitions.problems_of(project, definition)
    if problems:
        raise CommandError(_told(options["file"], problems, definition), returncode=EXIT_INVALID)
    if options["dry_run"]:
        command.stdout.write("valid")
        return
    flow, outcome = flow_definitions.apply(project, definition, by=operator())
    if options["json"]:
        command.write_json({"outcome": outcome, **_row(flow), "definition": flow.definition})
    else:
        command.write_table(["outcome", "flow", "version"], [(outcome, flow.slug, flow.version)])


def _told(file: str, problems: list[DefinitionProblem], definition: dict[str, Any]) -> str:
    """Return the problems as text, each with its place."""
    lines = [f"{file}: {json_path(each.pointer, definition)}: {each.text}" for each in problems[:20]]
    return "; ".join(printable(line) for line in lines)


def ls(command: AgentopsCommand, options: dict[str, Any]) -> None:
    scope = {"project": project_for(SYSTEM, options["project"], Action.READ)} if options["project"] else {}
    if options["runs"]:
        _list_runs(command, scope, options)
        return
    flows = Flow.objects.filter(**scope).select_related("project").order_by("project__slug", "slug")
    rows = [_row(flow) for flow in flows]
    if options["json"]:
        command.write_json(rows)
        return
    cells = [[row["project"], row["flow_id"], row["version"], row["title"]] for row in rows]
    command.write_table(["project", "flow", "version", "title"], cells)


def _list_runs(command: AgentopsCommand, scope: dict[str, Any], options: dict[str, Any]) -> None:
    flow_runs = FlowRun.objects.filter(**scope).select_related("project").newest_first()
    rows = [facts_of(flow_run) for flow_run in flow_runs[: options["limit"]]]
    if options["json"]:
        command.write_json(rows)
        return
    cells = [[row["id"], row["project"], row["flow_id"], with_reason(row), row["created_at"]] for row in rows]
    command.write_table(["id", "project", "flow", "status", "created"], cells)


def export(command: AgentopsCommand, options: dict[str, Any]) -> None:
    flow = flow_definitions.find(project_for(SYSTEM, options["project"], Action.READ), options["flow_id"])
    number = flow.version if options["number"] is None else options["number"]
    definition = flow_definitions.definition_at(flow, number) if 0 < number < 2**31 else None
    if definition is None:
        raise CommandError(f"flow {flow.slug} has no version {number}", returncode=EXIT_NOT_FOUND)
    command.stdout.write(json.dumps(definition, indent=2, ensure_ascii=False))


def _row(flow: Flow) -> dict[str, Any]:
    return {
        "id": flow.pk, "project": flow.project.slug, "flow_id": flow.slug, "title": redacted(flow.title),
        "version": flow.version, "updated_at": flow.updated_at,
    }  # fmt: skip
