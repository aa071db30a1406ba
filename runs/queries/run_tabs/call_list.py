"""The tool calls of a run, in the order of their steps, filtered by name and status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Count, F, Q, Sum
from django.db.models.functions import Left

from runs.models import AgentRunToolCall
from runs.queries.long_texts import JsonText

#: Maximum characters of a call's arguments in the list.
ARGUMENT_CHARACTERS = 400
#: Maximum number of tool names in the filter.
MAX_NAMES = 200


@dataclass(frozen=True)
class UsedTool:
    """The use of one tool in a run."""

    name: str
    calls: int
    failed: int
    duration_ms: int | None


def calls_after(
    run_id: UUID, after: tuple[int, UUID] | None, limit: int, *, name: str = "", statuses: Sequence[str] = ()
) -> list[Any]:
    """Return the next calls after the position `after`: step and ID. Arguments and outputs are not read whole."""
    rows = AgentRunToolCall.objects.filter(run=run_id).order_by("step_number", "pk")
    if name:
        rows = rows.filter(tool_name=name)
    if statuses:
        rows = rows.filter(status__in=statuses)
    if after is not None:
        rows = rows.filter(Q(step_number__gt=after[0]) | Q(step_number=after[0], pk__gt=after[1]))
    start = Left(JsonText("input"), ARGUMENT_CHARACTERS)
    return list(rows.defer("input", "output", "changed_arguments").annotate(input_start=start)[:limit])


def used_tools(run_id: UUID, failed_statuses: Sequence[str]) -> list[UsedTool]:
    """Return the tools of a run with their calls, ordered by total time, longest first. One query."""
    rows: Any = AgentRunToolCall.objects.filter(run=run_id).values_list("tool_name")
    counted = rows.annotate(
        calls=Count("pk"), failed=Count("pk", filter=Q(status__in=failed_statuses)), ms=Sum("duration_ms")
    )
    return [UsedTool(*row) for row in counted.order_by(F("ms").desc(nulls_last=True), "tool_name")[:MAX_NAMES]]
