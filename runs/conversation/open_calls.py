"""The tool calls that a person must settle: the call that asks a question, and calls of unknown outcome."""

from __future__ import annotations

from uuid import UUID

from django.db.models import OuterRef, QuerySet

from runs.models import AgentRunToolCall
from runs.statuses import ToolStatus


def asking_calls(run_id: UUID | OuterRef) -> QuerySet[AgentRunToolCall]:
    """Return the calls of a run that have not started.

    Calls run one after the other, so if the run waits for an answer, the first of them asks.
    """
    planned = AgentRunToolCall.objects.filter(run=run_id, status=ToolStatus.PLANNED, result_message=None)
    return planned.order_by("step_number", "id")


def unresolved_calls() -> QuerySet[AgentRunToolCall]:
    """Return the calls whose outcome has to be resolved. A call that is to run again has no `finished_at`."""
    open_calls = AgentRunToolCall.objects.filter(status=ToolStatus.UNKNOWN, result_message=None)
    return open_calls.exclude(finished_at=None)
