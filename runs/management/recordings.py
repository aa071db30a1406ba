"""Record runs and flow runs as fixtures: existing ones, or a new one that is executed in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.core.management.base import CommandError

from agentops.accounts.access import Action
from agentops.accounts.command_base import EXIT_INVALID, EXIT_NOT_COMPLETED, AgentopsCommand, operator, printable
from agentops.accounts.current_project import chosen_project
from agentops.base.http import strict_json
from runs.actions import agent_definitions, flow_definitions, flow_run_actions, run_actions
from runs.management.agent.references import find_flow_run, find_run
from runs.management.agent.run_table import redacted, require_completed, with_reason
from runs.management.agent.start_commands import prompt_of
from runs.management.fixture_folder import facts_of, fixture_name, free_paths, write_fixtures
from runs.management.flow_commands import facts_of as facts_of_flow_run
from runs.management.flow_commands import inputs_of
from runs.management.output import write_rows
from runs.models import AgentRun, Flow, FlowRun
from runs.queries.flow_fixtures import record_flow
from runs.queries.run_fixture import RunRecording, record
from runs.statuses import LIVE, RunStatus
from runs.worker.in_process import HumanAnswers, drive_flow_to_rest, drive_to_rest
from runs.worker.worker import Worker


class NodeRun(NamedTuple):
    """A run to record, and the name of its agent or node, which becomes the name of the file."""

    node: str
    run: AgentRun


def record_fixtures(command: AgentopsCommand, options: dict[str, Any]) -> None:
    """Write a fixture for each run. Write nothing if a run cannot be recorded."""
    runs = _existing(options["run"]) if options["run"] else [_new_run(options)]
    if options["name"] is not None:
        runs = [NodeRun(options["name"], each.run) for each in runs]
    names = _names(runs)
    recordings = {name: record(each.run) for name, each in zip(names, runs, strict=True)}
    fixtures = {name: recording.fixture for name, recording in recordings.items()}
    paths = write_fixtures(fixtures, options["output"], force=options["force"])
    rows = [
        facts_of(path, recording.fixture) | {"run": str(each.run.pk)}
        for path, recording, each in zip(paths, recordings.values(), runs, strict=True)
    ]
    _report(command, rows, list(recordings.values()), options)


def _existing(references: Sequence[str]) -> list[NodeRun]:
    runs = [find_run(reference) for reference in references]
    return [NodeRun(_agent_of(run), run) for run in dict.fromkeys(runs)]


def _new_run(options: dict[str, Any]) -> NodeRun:
    """Start a run of the agent, and execute it in this process until it ends, pauses or waits.

    Raises `CommandError` with exit code 1 if it does not complete.
    """
    project = chosen_project(options, Action.OPERATE)
    agent = agent_definitions.find(project, options["agent"])
    # Check before the run, which may cost money.
    free_paths([fixture_name(options["name"] or agent.slug)], options["output"], force=options["force"])
    run = run_actions.create(
        operator(), project, agent, prompt_of(agent, options), max_steps=options["max_steps"], labels=["recording"]
    )
    worker = Worker()
    try:
        run = drive_to_rest(run.pk, worker, timeout_s=options["wait"])
    finally:
        worker.close(5)
    if run.state in LIVE:
        reason = f" ({run.status_reason})" if run.status_reason else ""
        problem = f"the run is {run.status}{reason}; when it has ended: agentops record_fixtures --run {run.pk}"
        raise CommandError(printable(problem), returncode=EXIT_NOT_COMPLETED)
    require_completed(run)
    return NodeRun(agent.slug, run)


def _agent_of(run: AgentRun) -> str:
    config = run.agent_config
    return str(config.get("node_id") or config.get("agent_id") or "run")


def _names(runs: Sequence[NodeRun]) -> list[str]:
    """Return a name for each file: the node, and the end of the run's ID if several runs have the same node."""
    counts = Counter(fixture_name(each.node) for each in runs)
    return [
        name if counts[name := fixture_name(each.node)] == 1 else f"{name[:100]}-{each.run.pk.hex[-12:]}"
        for each in runs
    ]


def _report(
    command: AgentopsCommand, rows: list[dict[str, Any]], recordings: list[RunRecording], options: dict[str, Any]
) -> None:
    """Print a row for each file, and the notes of its recording."""
    if options["json"]:
        command.write_json([row | {"notes": each.notes} for row, each in zip(rows, recordings, strict=True)])
        return
    write_rows(command, rows, options)
    for row, each in zip(rows, recordings, strict=True):
        for note in each.notes:
            command.stderr.write(printable(f"{row['file']}: {note}"))


def record_flow_fixtures(command: AgentopsCommand, options: dict[str, Any]) -> None:
    """Write a folder named after the flow, with a fixture for each agent node, or nothing."""
    flow_run = find_flow_run(options["flow_run"]) if options["flow_run"] else _new_flow_run(options)
    recording = record_flow(flow_run)
    folder = options["output"] / fixture_name(options["name"] or flow_run.slug)
    fixtures = {node: each.fixture for node, each in recording.fixtures.items()}
    paths = write_fixtures(fixtures, folder, force=options["force"])
    rows = [facts_of(path, fixture) for path, fixture in zip(paths, fixtures.values(), strict=True)]
    recordings = list(recording.fixtures.values())
    if options["json"]:
        files = [row | {"notes": each.notes} for row, each in zip(rows, recordings, strict=True)]
        facts = {"flow_run": str(flow_run.pk), "files": files}
        command.write_json(facts | {"answers": recording.answers, "notes": recording.notes})
        return
    _report(command, rows, recordings, options)
    for note in recording.notes:
        command.stderr.write(printable(note))


def _new_flow_run(options: dict[str, Any]) -> FlowRun:
    """Start a run of the flow, and execute it in this process until it ends, pauses or waits.

    Raises `CommandError` with exit code 1 if it does not complete.
    """
    project = chosen_project(options, Action.OPERATE)
    flow = flow_definitions.find(project, options["flow"])
    inputs, answers = inputs_of(options), _answers_of(options, flow)
    # Check before the run, which may cost money.
    nodes = [node["id"] for node in flow.definition["nodes"] if node["type"] == "agent"]
    free_paths(nodes, options["output"] / fixture_name(options["name"] or flow.slug), force=options["force"])
    flow_run = flow_run_actions.create(operator(), flow, inputs)
    worker = Worker()
    try:
        flow_run = drive_flow_to_rest(flow_run.pk, worker, answers=answers, by=operator(), timeout_s=options["wait"])
    finally:
        worker.close(5)
    if flow_run.state is RunStatus.COMPLETED:
        return find_flow_run(str(flow_run.pk))
    problem = f"the flow run is {with_reason(facts_of_flow_run(flow_run))}"
    if flow_run.state in LIVE:
        problem += f"; when it has ended: agentops record_fixtures --flow-run {flow_run.pk}"
    elif flow_run.error_message:
        problem += f": {redacted(flow_run.error_message)}"
    raise CommandError(printable(problem), returncode=EXIT_NOT_COMPLETED)


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
