"""Record flow runs as fixtures: an existing flow run, or a new run of a flow, executed in this process."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError

from agentops.accounts.access import SYSTEM, Action, project_for
from agentops.accounts.management.base import EXIT_INVALID, EXIT_NOT_COMPLETED, AgentopsCommand, operator, printable
from agentops.base.http import strict_json
from runs.actions import flow_definitions, flow_run_actions
from runs.management.agent.references import find_flow_run
from runs.management.agent.run_table import redacted, with_reason
from runs.management.flow_commands import facts_of as facts_of_flow_run
from runs.management.flow_commands import inputs_of
from runs.management.recordings.fixture_folder import facts_of, fixture_name, free_paths, write_fixtures
from runs.models import Flow, FlowRun
from runs.queries.flow_fixtures import record_flow
from runs.statuses import LIVE, RunStatus
from runs.worker.flow_in_process import HumanAnswers, drive_flow_to_rest
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
    """Start a run of the flow, and execute it to its end in this process, even if the site has a worker.

    Raises `CommandError` with exit code 1 if it does not complete.
    """
    project = project_for(SYSTEM, options["project"], Action.OPERATE)
    flow = flow_definitions.find(project, options["flow"])
    inputs, answers = inputs_of(options), _answers_of(options, flow)
    # Check before the run, which may cost money.
    nodes = [node["id"] for node in flow.definition["nodes"] if node["type"] == "agent"]
    free_paths(nodes, options["output"] / fixture_name(options["name"] or flow.slug), force=options["force"])
    flow_run = flow_run_actions.create(operator(), flow, inputs)
    worker = Worker()
    try:
        flow_run = drive_flow_to_rest(
            flow_run.pk, worker, answers=answers, by=operator(), timeout_s=options["wait"]
        )  # fmt: skip
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


def _answers_of(options: dict[str, Any], flow: Flow) -> HumanAnswers:
    """Return the answers of `--answers`. Raises `CommandError`."""
    try:
        answers = strict_json.parse(options["answers"]) if options["answers"] is not None else {}
        if not isinstance(answers, dict) or not all(_is_answer(each) for each in answers.values()):
            raise ValueError("must be an object with a text, or a list of texts, for each node")
        return HumanAnswers(flow.definition, answers)
    except ValueError as error:
        raise CommandError(printable(f"--answers: {error}"), returncode=EXIT_INVALID) from None


def _is_answer(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(each, str) for each in value))
