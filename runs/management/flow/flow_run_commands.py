"""`agentops flow run`, `show`, `pause`, `resume`, `stop`, `send` and `tail`: runs of flows."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError

from agentops.http import strict_json
from agentops.projects.access import SYSTEM, Action, project_for
from agentops.projects.management.base import EXIT_INVALID, EXIT_NOT_COMPLETED, AgentopsCommand, operator, printable
from runs.actions.flows import flow_commands, flow_definitions, flow_run_actions
from runs.lifecycle.flows import node_runs
from runs.management.agent import tail as run_tail
from runs.management.agent.input_files import read_text
from runs.management.agent.references import find_flow_run
from runs.management.agent.run_table import redacted, with_reason
from runs.models import FlowRun, FlowVisit
from runs.queries.flows.flow_graphs import graph_of_run
from runs.statuses import LIVE, RunStatus
from timeline.redaction.redact import DEFAULT as REDACTOR


def facts_of(flow_run: FlowRun) -> dict[str, Any]:
    """Return the facts of a flow run in a list."""
    return {
        "id": flow_run.pk, "project": flow_run.project.slug, "flow_id": flow_run.slug,
        "flow_version": flow_run.flow_version, "status": flow_run.status, "status_reason": flow_run.status_reason,
        "created_at": flow_run.created_at, "started_at": flow_run.started_at, "completed_at": flow_run.completed_at,
    }  # fmt: skip


def run(command: AgentopsCommand, options: dict[str, Any]) -> None:
    project = project_for(SYSTEM, options["project"], Action.OPERATE)
    flow = flow_definitions.find(project, options["flow_id"])
    flow_run = flow_run_actions.create(operator(), flow, inputs_of(options))
    if options["json"]:
        command.write_json(facts_of(flow_run))
    else:
        command.stdout.write(str(flow_run.pk))


def inputs_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs of a flow, from `--inputs` or `--inputs-file`. Raises `CommandError`."""
    name = options["inputs_file"] or "--inputs"
    text = read_text(options["inputs_file"]) if options["inputs_file"] is not None else options["inputs"]
    try:
        inputs = strict_json.parse(text) if text is not None else {}
    except strict_json.NotJson as error:
        raise CommandError(printable(f"{name}: {error}"), returncode=EXIT_INVALID) from None
    if not isinstance(inputs, dict):
        raise CommandError(f"{name}: $: inputs must be an object", returncode=EXIT_INVALID)
    return inputs


def show(command: AgentopsCommand, options: dict[str, Any]) -> None:
    flow_run = find_flow_run(options["run"])
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
    _write(command, flow_run_actions.pause(operator(), find_flow_run(options["run"])), options)


def resume(command: AgentopsCommand, options: dict[str, Any]) -> None:
    flow_run = find_flow_run(options["run"])
    _write(command, flow_run_actions.resume(operator(), flow_run, message=options["message"]), options)


def stop(command: AgentopsCommand, options: dict[str, Any]) -> None:
    flow_run = find_flow_run(options["run"])
    if not options["dry_run"]:
        _write(command, flow_run_actions.stop(operator(), flow_run), options)
        return
    affected = flow_run_actions.affected_runs(flow_run)
    rows = [[run.pk, run.status, run.log.node_id, redacted(run.title)] for run in affected]
    if options["json"]:
        command.write_json([dict(zip(("id", "status", "node", "title"), row, strict=True)) for row in rows])
    else:
        command.write_table(["run", "status", "node", "title"], rows)


def send(command: AgentopsCommand, options: dict[str, Any]) -> None:
    flow_run = find_flow_run(options["run"])
    body = {"type": "send", "runId": _addressed(flow_run, options["to"]), "message": options["message"]}
    _write(command, flow_commands.command(operator(), flow_run, body), options)


def _addressed(flow_run: FlowRun, to: str) -> str:
    """Return the ID of the run that a node has open, or `to`, which is one then."""
    visits = FlowVisit.objects.open().filter(flow_run=flow_run, node=to, session__isnull=False)
    runs = node_runs.current_runs(list(visits.values_list("session_id", flat=True)[:2]))
    return str(next(iter(runs.values())).pk) if len(runs) == 1 else to


def tail(command: AgentopsCommand, options: dict[str, Any]) -> None:
    flow_run = find_flow_run(options["run"])
    statuses = FlowRun.objects.filter(pk=flow_run.pk).values_list("status", flat=True)
    run_tail.write_log(command, flow_run.pk, options, is_live=lambda: RunStatus(statuses.get()) in LIVE)
    if options["follow"]:
        fresh = FlowRun.objects.select_related("project").get(pk=flow_run.pk)
        if fresh.state is not RunStatus.COMPLETED:
            told = f"the flow run is {with_reason(facts_of(fresh))}"
            raise CommandError(printable(told), returncode=EXIT_NOT_COMPLETED)


def _write(command: AgentopsCommand, flow_run: FlowRun, options: dict[str, Any]) -> None:
    facts = facts_of(flow_run)
    if options["json"]:
        command.write_json(facts)
    else:
        command.stdout.write(f"{flow_run.pk} {with_reason(facts)}")
