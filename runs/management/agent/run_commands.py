"""`agentops agent resume`, `fork`, `pause`, `stop`, `send` and `outcome`: what a person decides about a run."""

from __future__ import annotations

from typing import Any

from agentops.projects.management.base import OurCommand
from runs.actions import run_actions
from runs.actions.run_actions import BulkOutcome
from runs.management.agent import fork_command, resume_all, settle
from runs.management.agent.references import find_run, operator
from runs.management.agent.run_state import refreshed
from runs.management.agent.run_table import row_of, with_reason
from runs.models import AgentRun
from runs.statuses import RunStatus


def resume(command: OurCommand, options: dict[str, Any]) -> None:
    resume_all.check_usage(options)
    wanted = {name: options[name] for name in ("message", "max_steps", "kill")} | {"append": not options["replace"]}
    if options["all"]:
        _write_outcomes(command, resume_all.resume_all(options, **wanted), options)
        return
    old = find_run(options["run"])
    if options["dry_run"]:
        _write_outcomes(command, run_actions.resume_many(operator(), [old], dry_run=True, **wanted), options)
        return
    done = run_actions.resume(operator(), old, **wanted)
    if options["json"]:
        command.write_json({**row_of(done.run), "already_resumed": done.already})
        return
    command.stdout.write(str(done.run.pk))
    if done.already:
        command.stderr.write(f"{old.pk} was already resumed; it is continued by {done.run.pk}")


def _write_outcomes(command: OurCommand, outcomes: list[BulkOutcome], options: dict[str, Any]) -> None:
    if options["json"]:
        command.write_json(resume_all.as_json(outcomes))
    else:
        command.write_table(["", "run", "as"], resume_all.lines_of(outcomes))


def fork(command: OurCommand, options: dict[str, Any]) -> None:
    new = fork_command.fork(find_run(options["run"]), options)
    if options["json"]:
        command.write_json({**row_of(new), "forked_from": new.forked_from_id, "forked_at_step": new.forked_at_step})
    else:
        command.stdout.write(str(new.pk))


def pause(command: OurCommand, options: dict[str, Any]) -> None:
    run = run_actions.pause(operator(), find_run(options["run"])).run
    _write_state(command, run, "pauses after the tools of its turn", options)


def stop(command: OurCommand, options: dict[str, Any]) -> None:
    run = run_actions.stop(operator(), find_run(options["run"])).run
    _write_state(command, run, "stops at its next step", options)


def send(command: OurCommand, options: dict[str, Any]) -> None:
    run = run_actions.send(operator(), find_run(options["run"]), options["message"]).run
    paused = run.state is RunStatus.PAUSED
    then = "reads it when it is resumed" if paused else "reads it before its next model call"
    _write_state(command, run, then, options)


def outcome(command: OurCommand, options: dict[str, Any]) -> None:
    done = settle.resolve(find_run(options["run"]), options)
    _write_state(command, done.run, "runs the call again" if options["retry"] else "continues with that", options)


def _write_state(command: OurCommand, run: AgentRun, still_to_come: str, options: dict[str, Any]) -> None:
    """Print what has become of the run, and what its worker has still to do."""
    facts = row_of(refreshed(run))
    if options["json"]:
        command.write_json(facts)
        return
    done = run.state in (RunStatus.PAUSED, RunStatus.STOPPED) and "message" not in options
    command.stdout.write(f"{run.pk} {with_reason(facts)}" + ("" if done else f"; {still_to_come}"))
