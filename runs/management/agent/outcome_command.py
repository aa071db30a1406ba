"""`agentops agent outcome`: resolve the unknown outcome of a tool call."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from uuid import UUID

from django.db.models import Q

from agentops.accounts.management.base import operator
from agentops.base.refusals import NotFound
from runs.actions import run_actions
from runs.actions.unknown_calls import OutcomeChoice, Resolution
from runs.models import AgentRun, AgentRunToolCall
from runs.statuses import ToolStatus


def resolve(run: AgentRun, options: dict[str, Any]) -> Resolution:
    call = find_call(run, options["call"])
    if options["retry"]:
        return run_actions.resolve_call(operator(), run, call.pk, OutcomeChoice.RETRY)
    if options["done"] is not None:
        return run_actions.resolve_call(operator(), run, call.pk, OutcomeChoice.DONE, text=options["done"])
    return run_actions.resolve_call(operator(), run, call.pk, OutcomeChoice.FAILED, text=options["failed"])


def find_call(run: AgentRun, reference: str) -> AgentRunToolCall:
    """Return a call by its ID or by the model's call ID. If several match, an unknown one, otherwise the newest."""
    condition = Q(call_id=reference)
    with suppress(ValueError):
        condition |= Q(pk=UUID(reference))
    calls = list(AgentRunToolCall.objects.filter(condition, run=run).order_by("step_number", "id"))
    if not calls:
        raise NotFound(f"tool call not found in run {run.pk}: {reference[:64]!r}", code="tool_call_not_found")
    return next((call for call in calls if call.status == ToolStatus.UNKNOWN), calls[-1])
