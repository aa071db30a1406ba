"""`agentops agent approve` and `deny`: decide the tool call that a run waits for."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.core.management.base import CommandError

from agentops.accounts.management.base import EXIT_INVALID, AgentopsCommand, operator
from agentops.base.http import strict_json
from agentops.base.refusals import Conflict
from runs.actions import approvals
from runs.lifecycle.approval_decisions import Decision
from runs.management.agent.input_files import read_text
from runs.management.agent.outcome_command import find_call
from runs.management.agent.references import find_run
from runs.management.agent.run_state import refresh
from runs.management.agent.run_table import row_of
from runs.models import AgentRun, Approval


def approve(command: AgentopsCommand, options: dict[str, Any]) -> None:
    arguments = _arguments(options)
    _decide(command, options, Decision(approves=True, arguments=arguments, always=options["always"]))


def deny(command: AgentopsCommand, options: dict[str, Any]) -> None:
    _decide(command, options, Decision(approves=False, message=options["message"]))


def _decide(command: AgentopsCommand, options: dict[str, Any], decision: Decision) -> None:
    run = find_run(options["run"])
    result = approvals.decide(operator(), run, _call_id(run, options["call"]), decision)
    facts = row_of(refresh(run))
    if options["json"]:
        command.write_json({**facts, "call_id": str(result.approval.call_id), "approval": result.approval.state})
    else:
        done = result.approval.state if result.is_new else f"was already {result.approval.state}"
        command.stdout.write(f"{run.pk} {facts['status']}; {result.approval.tool_name} {done}")


def _call_id(run: AgentRun, reference: str | None) -> UUID:
    """Return the call of the reference; without one, the call that the run waits for or last waited for."""
    if reference is not None:
        return find_call(run, reference).pk
    newest = Approval.objects.filter(run=run).order_by("-pk").first()
    if newest is None:
        raise Conflict(f"run {run.pk} is {run.status}, and waits for no approval", code="approval_not_requested")
    return newest.call_id


def _arguments(options: dict[str, Any]) -> dict[str, Any] | None:
    text = options["arguments"]
    if options["arguments_file"] is not None:
        text = read_text(options["arguments_file"])
    if text is None:
        return None
    try:
        value = strict_json.parse(text)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"the arguments are not JSON: {error}", returncode=EXIT_INVALID) from None
    if not isinstance(value, dict):
        raise CommandError("the arguments must be a JSON object", returncode=EXIT_INVALID)
    return value
