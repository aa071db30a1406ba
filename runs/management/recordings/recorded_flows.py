"""Record flow runs as fixtures: one that exists, or a new run of a flow, executed in this process."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError

from agentops.projects.access import SYSTEM, Action, project_for
from agentops.projects.management.base import EXIT_NOT_COMPLETED, AgentopsCommand, printable
from runs.actions.flows import flow_definitions, flow_run_actions
from runs.management.agent.references import find_flow_run, operator
from runs.management.agent.run_table import redacted, with_reason
from runs.management.flow.flow_run_commands import facts_of as facts_of_flow_run
from runs.management.flow.flow_run_commands import inputs_of
from runs.management.recordings.fixture_folder import facts_of, fixture_name, free_paths, write_fixtures
from runs.models import FlowRun
from runs.queries.recording.flow_fixtures import record_flow
from runs.statuses import LIVE, RunStatus
from runs.worker.in_process import drive_flow_to_rest
from runs.worker.worker import Worker


def record_flow_fixtures(command: AgentopsCommand, options: dict[str, Any]) -> None:
    """Write a folder named after the flow, with a fixture for each agent node, or nothing."""
    flow_run = find_flow_run(options["flow_run"]) if options["flow_run"] else _new_run(options)
    recording = record_flow(flow_run)
    folder = options["output"] / fixture_name(options["name"] or flow_run.slug)
    fixtures = {node: each.fixture for node, each in recording.fixtures.items()}
    paths = write_fixtures(fixtures, folder, force=options["force"])
    rows = [facts_of(path, fixture) for path, fixture in zip(paths, fixtures.values(), strict=True)]
    if options["json"]:
        notes = [each.notes for each in recording.fixtures.values()]
        files = [row | {"notes": own} for row, own in zip(rows, notes, strict=True)]
        facts = {"flow_run": str(flow_run.pk), "files": files}
        command.write_json(facts | {"answers": recording.answers, "notes": recording.notes})
        return
    command.write_table(list(rows[0]), [list(row.values()) for row in rows])
    for row, each in zip(rows, recording.fixtures.values(), strict=True):
        for note in each.notes:
            command.stderr.write(printable(f"{row['file']}: {note}"))
    for note in recording.notes:
        command.stderr.write(printable(note))


def _new_run(options: dict[str, Any]) -> FlowRun:
    """Start a run of the flow, and execute it here to its end, whether or not the site has a worker.

    Raises `CommandError` with exit code 1 if it does not complete.
    """
    project = project_for(SYSTEM, options["project"], Action.OPERATE)
    flow = flow_definitions.find(project, options["flow"])
    inputs = inputs_of(options)
    # Before the run, which may cost money.
    nodes = [node["id"] for node in flow.definition["nodes"] if node["type"] == "agent"]
    free_paths(nodes, options["output"] / fixture_name(options["name"] or flow.slug), force=options["force"])
    flow_run = flow_run_actions.create(operator(), flow, inputs)
    worker = Worker(concurrency=1)
    try:
        flow_run = drive_flow_to_rest(flow_run.pk, worker, timeout_s=options["wait"])
    finally:
        worker.close(5)
    if flow_run.state is RunStatus.COMPLETED:
        return find_flow_run(str(flow_run.pk))
    told = f"the flow run is {with_reason(facts_of_flow_run(flow_run))}"
    if flow_run.state in LIVE:
        told += f"; when it has ended: agentops record_fixtures --flow-run {flow_run.pk}"
    elif flow_run.error_message:
        told += f": {redacted(flow_run.error_message)}"
    raise CommandError(printable(told), returncode=EXIT_NOT_COMPLETED)
