"""`agentops run resume`, `fork`, `pause`, `stop`, `send`, `signal`, `outcome`, `approve` and `deny`: act on runs."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError
from django.db.models import Q

from agentops.accounts.access import Action
from agentops.accounts.command_base import (
    EXIT_INVALID,
    EXIT_REFUSED,
    EXIT_USAGE,
    AgentopsCommand,
    ask,
    operator,
    printable,
)
from agentops.accounts.current_project import project_filter
from agentops.base.http import strict_json
from agentops.base.refusals import Conflict, NotFound
from runs.actions import approvals, run_actions
from runs.actions.run_actions import BulkOutcome
from runs.actions.unknown_calls import OutcomeChoice, Resolution
from runs.errors import InvalidAgent
from runs.external import recorded_ends
from runs.lifecycle import children
from runs.lifecycle.approval_decisions import Decision
from runs.management.agent.arguments import clean_argument, json_object_of, read_definition, read_text
from runs.management.agent.references import find_row, find_run, is_short_id
from runs.management.agent.run_table import refresh, row_of, with_reason
from runs.management.output import write_result, write_rows
from runs.models import AgentRun, AgentRunToolCall, Approval
from runs.statuses import LIVE, RunStatus, ToolStatus


def resume(command: AgentopsCommand, options: dict[str, Any]) -> None:
    _check_usage(options)
    arguments = {name: options[name] for name in ("message", "max_steps", "kill")} | {"append": not options["replace"]}
    if options["all"]:
        _write_outcomes(command, _resume_all(options, **arguments), options)
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
    """Print for each run the result, and the new run or the reason why the run was skipped."""
    resumed = [each for each in outcomes if not each.code]
    skipped = [each for each in outcomes if each.code]
    if options["json"]:
        lists = {
            "resumed": [{"id": each.run_id, "resumed_as": each.resumed_as} for each in resumed],
            "skipped": [{"id": each.run_id, "code": each.code, "reason": each.reason} for each in skipped],
        }
        command.write_json(lists)
        return
    rows = [
        ("skipped", each.run_id, f"{each.code}: {each.reason}")
        if each.code
        else ("resumed", each.run_id, each.resumed_as or "-")
        for each in outcomes
    ]
    command.write_table(["", "run", "as"], rows)


def fork(command: AgentopsCommand, options: dict[str, Any]) -> None:
    new = _changed_fork(find_run(options["run"], options["project"]), options)
    facts = {**row_of(new), "forked_from": new.forked_from_id, "forked_at_step": new.forked_at_step}
    write_result(command, str(new.pk), options, facts)


def pause(command: AgentopsCommand, options: dict[str, Any]) -> None:
    run = find_run(options["run"], options["project"])
    if options["dry_run"]:
        _write_affected(command, run, RunStatus.PAUSED, options)
        return
    _write_state(command, run_actions.pause(operator(), run).run, "pauses after its current step", options)


def stop(command: AgentopsCommand, options: dict[str, Any]) -> None:
    run = find_run(options["run"], options["project"])
    if options["dry_run"]:
        _write_affected(command, run, RunStatus.STOPPED, options)
        return
    _write_state(command, recorded_ends.stop(operator(), run).run, "stops at its next step", options)


def _write_affected(command: AgentopsCommand, run: AgentRun, to: RunStatus, options: dict[str, Any]) -> None:
    """Print the runs that a stop or a pause would affect: the run and its affected child runs."""
    is_affected = not run.state.terminal and run.state is not to
    below = children.recorded_below([run.pk]) if run.is_recorded else children.taken_along([run.pk], to)
    ids = [run.pk, *(each.pk for each in below)] if is_affected else []
    runs = AgentRun.objects.select_related("project", "log").in_bulk(ids)
    rows = [row_of(runs[run_id]) for run_id in ids if run_id in runs]
    write_rows(command, rows, options, ("id", "status", "agent_id", "title"))


def send(command: AgentopsCommand, options: dict[str, Any]) -> None:
    run = run_actions.send(operator(), find_run(options["run"], options["project"]), options["message"]).run
    when = "when its code asks for messages" if run.is_durable else "before its next model call"
    when = "when it is resumed" if run.state is RunStatus.PAUSED else when
    _write_state(command, run, f"receives the message {when}", options)


def signal(command: AgentopsCommand, options: dict[str, Any]) -> None:
    text = options["payload"]
    try:
        value = None if text is None else strict_json.parse(text)
    except strict_json.NotJson as error:
        raise CommandError(printable(f"--payload must be JSON: {error}"), returncode=EXIT_INVALID) from None
    run = run_actions.signal(operator(), find_run(options["run"], options["project"]), options["name"], value).run
    _write_state(command, run, "receives the signal when it waits for it", options)


def outcome(command: AgentopsCommand, options: dict[str, Any]) -> None:
    resolution = _resolve(find_run(options["run"], options["project"]), options)
    effect = "runs the call again" if options["retry"] else "continues with this result"
    _write_state(command, resolution.run, effect, options)


def _write_state(command: AgentopsCommand, run: AgentRun, pending_effect: str, options: dict[str, Any]) -> None:
    """Print the status of the run and, if a command still has to take effect, `pending_effect`."""
    facts = row_of(refresh(run))
    is_done = run.state in (RunStatus.PAUSED, RunStatus.STOPPED) and "message" not in options
    text = f"{run.pk} {with_reason(facts)}" + ("" if is_done else f"; {pending_effect}")
    write_result(command, text, options, facts)


def _check_usage(options: dict[str, Any]) -> None:
    """Raise `CommandError` unless either RUN or --all is used, with matching options."""
    problem = ""
    if options["all"] == (options["run"] is not None):
        problem = "pass a run or --all" if not options["all"] else "pass either a run or --all, not both"
    elif options["replace"] and options["message"] is None:
        problem = "--replace requires --message"
    elif options["project"] is not None and not options["all"]:
        problem = "--project requires --all"
    if problem:
        raise CommandError(problem, returncode=EXIT_USAGE)


def _resume_all(options: dict[str, Any], **filters: Any) -> list[BulkOutcome]:
    runs = AgentRun.objects.unended().select_related("project")
    if (project := project_filter(options, Action.KILL)) is not None:
        runs = runs.filter(project=project)
    chosen = list(runs.order_by("pk"))
    if filters["kill"] and not options["dry_run"] and not options["yes"]:
        _confirm(sum(run.state in LIVE for run in chosen))
    return run_actions.resume_many(operator(), chosen, dry_run=options["dry_run"], **filters)


def _confirm(live: int) -> None:
    """Ask a person to confirm that the workers of `live` active runs are stopped.

    Raises `CommandError` without a terminal or without confirmation.
    """
    if not live:
        return
    question = f"this stops the workers of {live} active runs"
    if not sys.stdin.isatty():
        raise CommandError(f"{question}: pass --yes to confirm", returncode=EXIT_REFUSED)
    if ask(f"{question}. Continue? [y/N] ").lower() not in ("y", "yes"):
        raise CommandError("cancelled: nothing was changed", returncode=EXIT_REFUSED)


def _changed_fork(run: AgentRun, options: dict[str, Any]) -> AgentRun:
    changes = {name: options[name] for name in ("model", "max_steps") if options[name] is not None}
    if options["instructions_file"] is not None:
        changes["instructions"] = clean_argument(read_text(options["instructions_file"]))
    if options["settings_file"] is not None:
        changes["settings"] = read_definition(options["settings_file"])
    try:
        return run_actions.fork(operator(), run, step=options["step"], message=options["message"], agent=changes)
    except InvalidAgent as error:
        raise CommandError(printable(f"{error.data['pointer']}: {error}"), returncode=EXIT_INVALID) from error


def _resolve(run: AgentRun, options: dict[str, Any]) -> Resolution:
    call_id = _find_call(run, options["call"]).pk
    if options["retry"]:
        return run_actions.resolve_call(operator(), run, call_id, OutcomeChoice.RETRY)
    choice = OutcomeChoice.FAILED if options["done"] is None else OutcomeChoice.DONE
    text = options["failed"] if options["done"] is None else options["done"]
    return run_actions.resolve_call(operator(), run, call_id, choice, text=text)


def _find_call(run: AgentRun, reference: str) -> AgentRunToolCall:
    """Return a call by its ID, its short ID or the model's call ID.

    If several have the call ID, an unknown one, otherwise the newest.
    """
    condition = Q(call_id=reference)
    with suppress(ValueError):
        condition |= Q(pk=UUID(reference))
    calls = list(AgentRunToolCall.objects.filter(condition, run=run).order_by("step_number", "id"))
    if not calls and is_short_id(reference):
        return find_row(run.tool_calls.all(), reference, "tool call")
    if not calls:
        raise NotFound(f"tool call not found in run {run.pk}: {reference[:64]!r}", code="tool_call_not_found")
    return next((call for call in calls if call.status == ToolStatus.UNKNOWN), calls[-1])


def approve(command: AgentopsCommand, options: dict[str, Any]) -> None:
    arguments = json_object_of(options, "arguments")
    _decide(command, options, Decision(approves=True, arguments=arguments, always=options["always"]))


def deny(command: AgentopsCommand, options: dict[str, Any]) -> None:
    _decide(command, options, Decision(approves=False, message=options["message"]))


def _decide(command: AgentopsCommand, options: dict[str, Any], decision: Decision) -> None:
    run = find_run(options["run"], options["project"])
    result = approvals.decide(operator(), run, _call_id(run, options["call"]), decision)
    facts, approval = row_of(refresh(run)), result.approval
    state = approval.state if result.is_new else f"was already {approval.state}"
    text = f"{run.pk} {facts['status']}; {approval.tool_name} {state}"
    write_result(command, text, options, {**facts, "call_id": str(approval.call_id), "approval": approval.state})


def _call_id(run: AgentRun, reference: str | None) -> UUID:
    """Return the row ID of the call; without a reference, of the call whose approval was requested last."""
    if reference is not None:
        return _find_call(run, reference).pk
    newest = Approval.objects.filter(run=run).order_by("-pk").first()
    if newest is None:
        raise Conflict(f"run {run.pk} is {run.status}, and waits for no approval", code="approval_not_requested")
    return newest.call_id
