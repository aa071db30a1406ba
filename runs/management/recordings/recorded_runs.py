"""Record runs as fixtures: existing runs, or a new run of an agent, executed in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.core.management.base import CommandError

from agentops.accounts.access import SYSTEM, Action, project_for
from agentops.accounts.management.base import EXIT_NOT_COMPLETED, AgentopsCommand, operator, printable
from runs.actions import agent_definitions, run_actions
from runs.management.agent.references import find_run
from runs.management.agent.run_state import require_completed
from runs.management.agent.start_commands import prompt_of
from runs.management.recordings.fixture_folder import facts_of, fixture_name, free_paths, write_fixtures
from runs.models import AgentRun
from runs.queries.run_fixture import RunRecording, record
from runs.statuses import LIVE
from runs.worker.in_process import drive_to_rest
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
    _report(command, rows, list(recordings.values()), as_json=options["json"])


def _existing(references: Sequence[str]) -> list[NodeRun]:
    runs = [find_run(reference) for reference in references]
    return [NodeRun(_agent_of(run), run) for run in dict.fromkeys(runs)]


def _new_run(options: dict[str, Any]) -> NodeRun:
    """Start a run of the agent, and execute it to its end in this process, even if the site has a worker.

    Raises `CommandError` with exit code 1 if it does not complete.
    """
    project = project_for(SYSTEM, options["project"], Action.OPERATE)
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
    """Return a name for each file: the name of the node, followed by the end of the run's ID if names collide."""
    counts = Counter(fixture_name(each.node) for each in runs)
    return [
        name if counts[name := fixture_name(each.node)] == 1 else f"{name[:100]}-{each.run.pk.hex[-12:]}"
        for each in runs
    ]  # fmt: skip


def _report(
    command: AgentopsCommand, rows: list[dict[str, Any]], recordings: list[RunRecording], *, as_json: bool
) -> None:
    if as_json:
        command.write_json([row | {"notes": each.notes} for row, each in zip(rows, recordings, strict=True)])
        return
    command.write_table(list(rows[0]), [list(row.values()) for row in rows])
    for row, each in zip(rows, recordings, strict=True):
        for note in each.notes:
            command.stderr.write(printable(f"{row['file']}: {note}"))
