"""`agentops agent outcome`: what came of a tool call whose outcome is unknown."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from uuid import UUID

from django.db.models import Q

from runs.actions import run_actions
from runs.actions.unknown_calls import OutcomeChoice, Resolved
from runs.errors import ToolCallNotFound
from runs.management.agent.references import operator
from runs.models import AgentRun, AgentRunToolCall
from runs.statuses import ToolStatus


def resolve(run: AgentRun, options: dict[str, Any]) -> Resolved:
    call = _find_call(run, options["call"])
    if options["retry"]:
        return run_actions.resolve_call(operator(), run, call.pk, OutcomeChoice.RETRY)
    if options["done"] is not None:
        return run_actions.resolve_call(operator(), run, call.pk, OutcomeChoice.DONE, text=options["done"])
    return run_actions.resolve_call(operator(), run, call.pk, OutcomeChoice.FAILED, text=options["failed"])


def _find_call(run: AgentRun, reference: str) -> AgentRunToolCall:
    """By the row's id, or by the model's name for it: that of a call that is unknown first, then the newest."""
    named = Q(call_id=reference)
    with suppress(ValueError):
        named |= Q(pk=UUID(reference))
    found = list(AgentRunToolCall.objects.filter(named, run=run).order_by("step_number", "id"))
    if not found:
        raise ToolCallNotFound(f"tool call not found in run {run.pk}: {reference[:64]!r}")
    return next((call for call in found if call.status == ToolStatus.UNKNOWN), found[-1])
