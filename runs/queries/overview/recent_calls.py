"""Usage by model, and calls by tool, in the newest ended runs of a project.

Limited to the newest runs, because model calls and tool calls have no time index, and a run has many of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db import connection
from django.db.models import Count, Q, Sum

from agentops.accounts.models import Project
from runs.models import AgentRun, AgentRunToolCall, TurnUsage
from runs.statuses import ToolStatus

#: Maximum number of newest ended runs to read.
MAX_RUNS = 2000
#: Models and tools that are listed.
MAX_NAMES = 20


@dataclass(frozen=True)
class ModelSums:
    """The usage of a model, by the name in its answers."""

    model: str
    calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: Decimal
    #: Calls whose cost is unknown.
    unpriced: int


@dataclass(frozen=True)
class ToolSums:
    """The outcomes of a tool's calls."""

    name: str
    calls: int
    #: Calls that ended with an error.
    failed: int
    #: Milliseconds; None if no call has a duration.
    p50_ms: int | None
    p95_ms: int | None


def newest_ended(project: Project, since: datetime) -> list[Any]:
    """Return the IDs of the newest runs that ended since a time, at most `MAX_RUNS`. Uses the index `run_retention`."""
    runs = AgentRun.objects.filter(project=project, completed_at__isnull=False, completed_at__gte=since)
    return list(runs.order_by("-completed_at", "-pk").values_list("pk", flat=True)[:MAX_RUNS])


def sums_by_model(run_ids: list[Any]) -> list[ModelSums]:
    """Return the models with most calls in these runs. One query."""
    rows: Any = TurnUsage.objects.filter(run__in=run_ids).order_by().values("model")
    sums = rows.annotate(
        calls=Count("pk", filter=~Q(outcome=TurnUsage.Outcome.PROGRAM)),
        sent=Sum("input_tokens"),
        received=Sum("output_tokens"),
        cost=Sum("cost_usd"),
        unpriced=Count("pk", filter=Q(cost_usd=None)),
    ).order_by("-calls", "model")
    return [
        ModelSums(row["model"], row["calls"], row["sent"], row["received"], row["cost"] or Decimal(0), row["unpriced"])
        for row in sums[:MAX_NAMES]
    ]


def sums_by_tool(run_ids: list[Any]) -> list[ToolSums]:
    """Return the tools with most ended calls in these runs. One query."""
    if not run_ids:
        return []
    key = AgentRun._meta.pk
    marks = ", ".join(["%s"] * len(run_ids))
    sql = _TOOLS.format(calls=AgentRunToolCall._meta.db_table, marks=marks, limit=MAX_NAMES)
    with connection.cursor() as cursor:
        cursor.execute(sql, [*(key.get_db_prep_value(each, connection) for each in run_ids), ToolStatus.ERROR])
        return [ToolSums(*row) for row in cursor]


#: The percentiles are nearest ranks, as in ended_runs.
_TOOLS = """
WITH ranked AS (
    SELECT tool_name, status, duration_ms, COUNT(duration_ms) OVER (PARTITION BY tool_name) AS number,
        ROW_NUMBER() OVER (
            PARTITION BY tool_name ORDER BY CASE WHEN duration_ms IS NULL THEN 1 ELSE 0 END, duration_ms
        ) AS place
    FROM {calls} WHERE starts > 0 AND run_id IN ({marks})
)
SELECT tool_name, COUNT(*), COUNT(CASE WHEN status = %s THEN 1 END),
    MIN(CASE WHEN place >= 0.5 * number THEN duration_ms END),
    MIN(CASE WHEN place >= 0.95 * number THEN duration_ms END)
FROM ranked GROUP BY tool_name ORDER BY COUNT(*) DESC, tool_name LIMIT {limit}
"""
