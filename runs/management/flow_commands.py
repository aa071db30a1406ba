"""`agentops flow`: definitions of flows, and their runs."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser

from agentops.accounts.access import Action
from agentops.accounts.command_base import (
    EXIT_INVALID,
    EXIT_NOT_COMPLETED,
    EXIT_NOT_FOUND,
    AddSubcommand,
    AgentopsCommand,
    operator,
    printable,
)
from agentops.accounts.current_project import add_project, add_project_filter, chosen_project, project_filter
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.actions import flow_commands, flow_definitions, flow_run_actions
from runs.agents.definition import json_path
from runs.flows.definition import DefinitionProblem
from runs.lifecycle import node_runs
from runs.management.agent import arguments
from runs.management.agent import tail as run_tail
from runs.management.agent.arguments import STDIN, clean_argument, read_definition
from runs.management.agent.options import FLOW_RUN_HELP
from runs.management.agent.references import find_flow_run
from runs.management.agent.run_table import redacted, with_reason
from runs.management.output import write_result, write_rows
from runs.models import Flow, FlowRun, FlowVisit
from runs.queries.flow_states import graph_of_run
from runs.statuses import RunStatus


def facts_of(flow_run: FlowRun) -> dict[str, Any]:
    """Return the facts of a flow run in a list."""
    return {
        "id": flow_run.pk,
        "project": flow_run.project.slug,
        "flow_id": flow_run.slug,
        "flow_version": flow_run.flow_version,
        "status": flow_run.status,
        "status_reason": flow_run.status_reason,
        "created_at": flow_run.created_at,
        "started_at": flow_run.started_at,
        "completed_at": flow_run.completed_at,
    }


def run(command: AgentopsCommand, options: dict[str, Any]) -> None:
    project = chosen_project(options, Action.OPERATE)
    flow = flow_definitions.find(project, options["flow_id"])
    flow_run = flow_run_actions.create(operator(), flow, inputs_of(options))
    write_result(command, str(flow_run.pk), options, facts_of(flow_run))


def inputs_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs of a flow, from `--inputs` or `--inputs-file`. Raises `CommandError`."""
    return arguments.json_object_of(options, "inputs") or {}


def show(command: AgentopsCommand, options: dict[str, Any]) -> None:
    flow_run = find_flow_run(options["run"], options["project"])
    graph = graph_of_run(flow_run)
    if options["json"]:
        snapshot = REDACTOR.clean(flow_run.snapshot)[0]
        command.write_json({**facts_of(flow_run), "error": redacted(flow_run.error_message), "snapshot": snapshot})
        return
    command.stdout.write(f"{flow_run.pk} {flow_run.slug} {with_reason(facts_of(flow_run))}")
    if flow_run.error_message:
        command.stdout.write(printable(redacted(flow_run.error_message)))
    rows = []
    for node in graph.nodes:
        newest = node.visits[0] if node.visits else None
        run_id = "" if newest is None or newest.run_id is None else newest.run_id
        rows.append([node.id, node.kind, node.status.value, node.visit_count, run_id])
    command.write_table(["node", "kind", "status", "visits", "run"], rows)
    loops = [[edge.key, f"{edge.iterations} of {edge.max_iterations}"] for edge in graph.edges if edge.max_iterations]
    if loops:
        command.write_table(["loop", "iterations"], loops)


def pause(command: AgentopsCommand, options: dict[str, Any]) -> None:
    _write(command, flow_run_actions.pause(operator(), find_flow_run(options["run"], options["project"])), options)


def resume(command: AgentopsCommand, options: dict[str, Any]) -> None:
    flow_run = find_flow_run(options["run"], options["project"])
    _write(command, flow_run_actions.resume(operator(), flow_run, message=options["message"]), options)


def stop(command: AgentopsCommand, options: dict[str, Any]) -> None:
    flow_run = find_flow_run(options["run"], options["project"])
    if not options["dry_run"]:
        _write(command, flow_run_actions.stop(operator(), flow_run), options)
        return
    affected = flow_run_actions.affected_runs(flow_run)
    names = ("id", "status", "node", "title")
    cells = [(run.pk, run.status, run.log.node_id, redacted(run.title)) for run in affected]
    write_rows(command, [dict(zip(names, row, strict=True)) for row in cells], options, names)


def send(command: AgentopsCommand, options: dict[str, Any]) -> None:
    flow_run = find_flow_run(options["run"], options["project"])
    body = {"type": "send", "runId": _receiver(flow_run, options["to"]), "message": options["message"]}
    _write(command, flow_commands.command(operator(), flow_run, body), options)


def _receiver(flow_run: FlowRun, to: str) -> str:
    """Return the ID of the run that gets a message, from the argument TO: a run ID, or a node with one open run.

    Returns `to` unchanged unless it is such a node; the command checks it.
    """
    visits = FlowVisit.objects.open().filter(flow_run=flow_run, node=to, session__isnull=False)
    runs = node_runs.current_runs(list(visits.values_list("session_id", flat=True)[:2]))
    return str(next(iter(runs.values())).pk) if len(runs) == 1 else to


def tail(command: AgentopsCommand, options: dict[str, Any]) -> None:
    flow_run = find_flow_run(options["run"], options["project"])
    run_tail.write_log(command, flow_run, options)
    if options["follow"]:
        fresh = FlowRun.objects.select_related("project").get(pk=flow_run.pk)
        if fresh.state is not RunStatus.COMPLETED:
            problem = f"the flow run is {with_reason(facts_of(fresh))}"
            raise CommandError(printable(problem), returncode=EXIT_NOT_COMPLETED)


def _write(command: AgentopsCommand, flow_run: FlowRun, options: dict[str, Any]) -> None:
    facts = facts_of(flow_run)
    write_result(command, f"{flow_run.pk} {with_reason(facts)}", options, facts)


# --- Definitions ---


def apply(command: AgentopsCommand, options: dict[str, Any]) -> None:
    project = chosen_project(options, Action.CONFIGURE)
    definition = read_definition(options["file"])
    problems = flow_definitions.problems_of(project, definition)
    if problems:
        raise CommandError(_problems_text(options["file"], problems, definition), returncode=EXIT_INVALID)
    if options["dry_run"]:
        command.stdout.write("valid")
        return
    flow, outcome = flow_definitions.apply(project, definition, by=operator())
    if options["json"]:
        command.write_json({"outcome": outcome, **_row(flow), "definition": flow.definition})
    else:
        command.write_table(["outcome", "flow", "version"], [(outcome, flow.slug, flow.version)])


def _problems_text(file: str, problems: list[DefinitionProblem], definition: dict[str, Any]) -> str:
    """Return the first 20 problems in one line, each with the file and its position in it."""
    lines = [f"{file}: {json_path(each.pointer, definition)}: {each.text}" for each in problems[:20]]
    return "; ".join(printable(line) for line in lines)


def ls(command: AgentopsCommand, options: dict[str, Any]) -> None:
    project = project_filter(options, Action.READ)
    scope = {} if project is None else {"project": project}
    if options["runs"]:
        _list_runs(command, scope, options)
        return
    flows = Flow.objects.filter(**scope).select_related("project").order_by("project__slug", "slug")
    write_rows(command, [_row(flow) for flow in flows], options, ("project", "flow_id", "version", "title"))


def _list_runs(command: AgentopsCommand, scope: dict[str, Any], options: dict[str, Any]) -> None:
    flow_runs = FlowRun.objects.filter(**scope).select_related("project").newest_first()
    rows = [facts_of(flow_run) for flow_run in flow_runs[: options["limit"]]]
    if options["json"]:
        command.write_json(rows)
        return
    cells = [[row["id"], row["project"], row["flow_id"], with_reason(row), row["created_at"]] for row in rows]
    command.write_table(["id", "project", "flow", "status", "created"], cells, optional=("project",))


def export(command: AgentopsCommand, options: dict[str, Any]) -> None:
    flow = flow_definitions.find(chosen_project(options, Action.READ), options["flow_id"])
    number = flow.version if options["number"] is None else options["number"]
    definition = flow_definitions.definition_at(flow, number) if 0 < number < 2**31 else None
    if definition is None:
        raise CommandError(f"flow {flow.slug} has no version {number}", returncode=EXIT_NOT_FOUND)
    command.stdout.write(json.dumps(definition, indent=2, ensure_ascii=False))


def _row(flow: Flow) -> dict[str, Any]:
    return {
        "id": flow.pk,
        "project": flow.project.slug,
        "flow_id": flow.slug,
        "title": redacted(flow.title),
        "version": flow.version,
        "updated_at": flow.updated_at,
    }


# --- Options ---

_COMMANDS = "runs.management.flow_commands"


def add_all(add: AddSubcommand) -> None:
    _add_definitions(add)
    _add_run(add)
    _add_control(add)


def _add_definitions(add: AddSubcommand) -> None:
    apply = add("apply", f"{_COMMANDS}.apply", help="Create or change a flow from a definition")
    apply.add_argument("file", metavar="FILE", help=f"definition in TOML or JSON; {STDIN} reads standard input")
    apply.add_argument("--dry-run", action="store_true", help="check the definition and change nothing")
    ls = add("ls", f"{_COMMANDS}.ls", help="List flows, or with --runs flow runs, newest first")
    add_project_filter(ls)
    ls.add_argument("--runs", action="store_true", help="list flow runs")
    arguments.add_limit(ls, 50, "number of flow runs (default: 50)")
    arguments.add_json(ls)
    show = add("show", f"{_COMMANDS}.show", help="Show a flow run: its nodes, edges and runs")
    _add_run_argument(show)
    arguments.add_json(show)
    export = add("export", f"{_COMMANDS}.export", help="Print the definition of a flow as JSON")
    export.add_argument("flow_id", metavar="FLOW_ID", help="ID of the flow")
    export.add_argument(
        "--version", dest="number", metavar="N", type=arguments.whole, help="version (default: the newest)"
    )
    add_project(apply, export)
    arguments.add_json(apply)


def _add_run(add: AddSubcommand) -> None:
    run = add("run", f"{_COMMANDS}.run", help="Start a run of a flow and print its ID")
    run.add_argument("flow_id", metavar="FLOW_ID", help="ID of the flow")
    add_project(run)
    arguments.add_json_or_file(run, "inputs", "inputs as a JSON object")
    arguments.add_json(run)


def _add_control(add: AddSubcommand) -> None:
    pause = add("pause", f"{_COMMANDS}.pause", help="Pause a flow run, and its nodes after their current steps")
    resume = add("resume", f"{_COMMANDS}.resume", help="Resume a paused flow run")
    resume.add_argument(
        "--message", metavar="M", type=clean_argument, help='message to the open agents (default: "continue")'
    )
    stop = add("stop", f"{_COMMANDS}.stop", help="Stop a flow run and the runs of its nodes; it cannot be resumed")
    stop.add_argument("--dry-run", action="store_true", help="list the runs that would be stopped")
    send = add("send", f"{_COMMANDS}.send", help="Send a message to a run of a flow run, or answer its question")
    tail = add("tail", f"{_COMMANDS}.tail", help="Print a flow run's events until it ends or pauses")
    for parser in (pause, resume, stop, send, tail):
        _add_run_argument(parser)
    for parser in (pause, resume, stop, send):
        arguments.add_json(parser)
    send.add_argument("to", metavar="TO", help="run ID that gets the message, or the node if it has one open run")
    send.add_argument("message", metavar="MESSAGE", type=clean_argument, help="message text")
    arguments.add_tail(tail)


def _add_run_argument(parser: CommandParser) -> None:
    parser.add_argument("run", metavar="RUN", help=FLOW_RUN_HELP)
    parser.add_argument("--project", metavar="SLUG", help="only flow runs of this project")
