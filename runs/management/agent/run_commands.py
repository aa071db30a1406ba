"""`agentops agent resume`, `fork`, `pause`, `stop`, `send` and `outcome`: act on runs."""

from __future__ import annotations

from typing import Any

from agentops.projects.management.base import AgentopsCommand
from runs.actions import run_actions
from runs.actions.run_actions import BulkOutcome
from runs.management.agent import fork_command, outcome_command, resume_all
from runs.management.agent.references import find_run, operator
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
    run = run_actions.pause(operator(), find_run(options["run"])).run
    _write_state(command, run, "pauses after its current step", options)


def stop(command: AgentopsCommand, options: dict[str, Any]) -> None:
    run = run_actions.stop(operator(), find_run(options["run"])).run
    _write_state(command, run, "stops at its next step", options)


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
    """Print the status of the run, and what its worker will do."""
    facts = row_of(refresh(run))
    if options["json"]:
        command.write_json(facts)
        return
    is_done = run.state in (RunStatus.PAUSED, RunStatus.STOPPED) and "message" not in options
    command.stdout.write(f"{run.pk} {with_reason(facts)}" + ("" if is_done else f"; {pending_effect}"))
