"""`agentops agent resume`, `fork`, `pause`, `stop`, `send` and `outcome`: act on runs."""

from __future__ import annotations

from typing import Any

from agentops.accounts.management.base import AgentopsCommand, operator
from runs.actions import run_actions
from runs.actions.run_actions import BulkOutcome
from runs.external import recorded_ends
from runs.lifecycle import children
from runs.management.agent import fork_command, outcome_command, resume_all
from runs.management.agent.references import find_run
from runs.management.agent.run_state import refresh
from runs.management.agent.run_table import row_of, with_reason
from runs.models import AgentRun
from runs.statuses import RunStatus


def resume(command: AgentopsCommand, options: dict[str, Any]) -> None:
    resume_all.check_usage(options)
    arguments = {name: options[name] for name in ("message", "max_steps", "kill")} | {"append": not options["replace"]}
    if options["all"]:
        _write_outcomes(command, resume_all.resume_all(options, **arguments), options)
        return
    old = find_run(options["run"])
    if options["dry_run"]:
        _write_outcomes(command, run_actions.resume_many(operator(), [old], dry_run=True, **arguments), options)
        return
    result = run_actions.resume(operator(), old, **arguments)
    if options["json"]:
        command.write_json({**row_of(result.run), "already_resumed": result.is_existing})
        return
    command.stdout.write(str(result.run.pk))
    if result.is_existing:
        command.stderr.write(f"{old.pk} was already resumed; it is continued by {result.run.pk}")


def _write_outcomes(command: AgentopsCommand, outcomes: list[BulkOutcome], options: dict[str, Any]) -> None:
    if options["json"]:
        command.write_json(resume_all.as_json(outcomes))
    else:
        command.write_table(["", "run", "as"], resume_all.lines_of(outcomes))


def fork(command: AgentopsCommand, options: dict[str, Any]) -> None:
    new = fork_command.fork(find_run(options["run"]), options)
    if options["json"]:
        command.write_json({**row_of(new), "forked_from": new.forked_from_id, "forked_at_step": new.forked_at_step})
    else:
        command.stdout.write(str(new.pk))


def pause(command: AgentopsCommand, options: dict[str, Any]) -> None:
    run = find_run(options["run"])
    if options["dry_run"]:
        _write_affected(command, run, RunStatus.PAUSED, options)
        return
    _write_state(command, run_actions.pause(operator(), run).run, "pauses after its current step", options)


def stop(command: AgentopsCommand, options: dict[str, Any]) -> None:
    run = find_run(options["run"])
    if options["dry_run"]:
        _write_affected(command, run, RunStatus.STOPPED, options)
        return
    _write_state(command, recorded_ends.stop(operator(), run).run, "stops at its next step", options)


def _write_affected(command: AgentopsCommand, run: AgentRun, to: RunStatus, options: dict[str, Any]) -> None:
    """Print the runs that a stop or a pause would affect: the run and its affected child runs."""
    is_affected = not run.state.terminal and run.state is not to
    along = children.recorded_below([run.pk]) if run.is_recorded else children.taken_along([run.pk], to)
    ids = [run.pk, *(each.pk for each in along)] if is_affected else []
    found = AgentRun.objects.select_related("project", "log").in_bulk(ids)
    rows = [row_of(found[run_id]) for run_id in ids if run_id in found]
    if options["json"]:
        command.write_json(rows)
    else:
        cells = [[row["id"], row["status"], row["agent_id"], row["title"]] for row in rows]
        command.write_table(["run", "status", "agent", "title"], cells)


def send(command: AgentopsCommand, options: dict[str, Any]) -> None:
    run = run_actions.send(operator(), find_run(options["run"]), options["message"]).run
    paused = run.state is RunStatus.PAUSED
    then = "receives the message when it is resumed" if paused else "receives the message before its next model call"
    _write_state(command, run, then, options)


def outcome(command: AgentopsCommand, options: dict[str, Any]) -> None:
    resolution = outcome_command.resolve(find_run(options["run"]), options)
    then = "runs the call again" if options["retry"] else "continues with this result"
    _write_state(command, resolution.run, then, options)


def _write_state(command: AgentopsCommand, run: AgentRun, pending_effect: str, options: dict[str, Any]) -> None:
    """Print the status of the run, and the pending action of its worker."""
    facts = row_of(refresh(run))
    if options["json"]:
        command.write_json(facts)
        return
    is_done = run.state in (RunStatus.PAUSED, RunStatus.STOPPED) and "message" not in options
    command.stdout.write(f"{run.pk} {with_reason(facts)}" + ("" if is_done else f"; {pending_effect}"))
