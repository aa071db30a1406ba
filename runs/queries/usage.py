"""Usage of models and tools: of a run by model and step, of the newest runs of a project, and of its agents.

Only the newest runs of a project are read, because model calls and tool calls have no index of times, and a run has
many of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Count, OuterRef, Q, QuerySet, Subquery, Sum, UUIDField

from agentops.accounts.models import Project
from runs.conversation.writes import TOKENS
from runs.models import Agent, AgentRun, AgentRunToolCall, TurnUsage
from runs.statuses import ToolStatus

#: Maximum number of newest runs to read.
MAX_NEWEST_RUNS = 500
#: Maximum models and notes that are returned.
MAX_MODELS, MAX_NOTES = 100, 20


@dataclass(frozen=True)
class UsedModel:
    """A model, by the name in its answers."""

    name: str
    calls: int
    #: The number of calls whose cost is unknown.
    unpriced: int


def usage_by_model(run_id: UUID) -> list[dict[str, Any]]:
    """Return the number of calls, the tokens and the cost of each model, ordered by name. One query.

    Calls that were abandoned are included. `unpriced` is the number of calls whose cost is unknown. `cost_usd` is None
    if the cost of no call is known.
    """
    sums: dict[str, Any] = {name: Sum(name) for name in (*TOKENS, "cost_usd")}
    rows: Any = TurnUsage.objects.filter(run=run_id).values("model").order_by("model")
    counts = {
        # Usage that a program reports in addition to its answers is not a call.
        "calls": Count("pk", filter=~Q(outcome=TurnUsage.Outcome.PROGRAM)),
        "unpriced": Count("pk", filter=Q(cost_usd=None)),
    }
    return list(rows.annotate(**counts, **sums))


@dataclass(frozen=True)
class CostNote:
    """A note on the cost of calls: why it is unknown, or the source of their price."""

    model: str
    note: str
    calls: int
    is_priced: bool


def cost_notes(run_id: UUID) -> list[CostNote]:
    """Return the notes on the costs of a run's calls, unpriced ones first, at most `MAX_NOTES`. One query."""
    rows: Any = TurnUsage.objects.filter(run=run_id).exclude(cost_note="").values("model", "cost_note")
    counted = rows.annotate(calls=Count("pk"), priced=Count("cost_usd")).order_by("priced", "-calls", "model")
    return [
        CostNote(row["model"], row["cost_note"], row["calls"], is_priced=bool(row["priced"]))
        for row in counted[:MAX_NOTES]
    ]


def used_models(project_id: UUID) -> list[UsedModel]:
    """Return the models of the newest runs, ordered by unpriced calls, most first. Two queries."""
    newest = AgentRun.objects.filter(project=project_id).order_by("-created_at", "-pk").values_list("pk", flat=True)
    rows = (
        TurnUsage.objects.filter(run__in=list(newest[:MAX_NEWEST_RUNS]))
        .exclude(model="")
        .values_list("model")
        .annotate(calls=Count("pk"), unpriced=Count("pk", filter=Q(cost_usd=None)))
        .order_by("-unpriced", "model")
    )
    return [UsedModel(*row) for row in rows[:MAX_MODELS]]


@dataclass(frozen=True)
class StepCost:
    """The model calls of a step. The input includes tokens read from the cache and written to it."""

    step: int
    calls: int
    #: Calls with unknown cost.
    unpriced: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cache_write_1h_tokens: int
    reasoning_tokens: int
    cost_usd: Decimal | None
    duration_ms: int | None


def step_costs(run_id: UUID, after: int, limit: int) -> list[StepCost]:
    """Return the usage of the next steps after step `after`, in order, with calls that got no answer. One query."""
    rows: Any = TurnUsage.objects.filter(run=run_id, step_number__gt=after).values("step_number")
    summed = rows.annotate(
        calls=Count("pk"),
        unpriced=Count("pk", filter=Q(cost_usd=None)),
        **{f"sum_{name}": Sum(name) for name in (*TOKENS, "cost_usd", "duration_ms")},
    ).order_by("step_number")
    return [_step_cost(row) for row in summed[:limit]]


def _step_cost(row: dict[str, Any]) -> StepCost:
    tokens = {name: row[f"sum_{name}"] or 0 for name in TOKENS}
    return StepCost(
        step=row["step_number"],
        calls=row["calls"],
        unpriced=row["unpriced"],
        cost_usd=row["sum_cost_usd"],
        duration_ms=row["sum_duration_ms"],
        **tokens,
    )


# --- Recent activity of a project ---

#: Maximum number of newest ended runs to read.
MAX_ENDED_RUNS = 2000
#: Maximum number of models, and of tools, that are listed.
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
    return list(runs.order_by("-completed_at", "-pk").values_list("pk", flat=True)[:MAX_ENDED_RUNS])


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
    placeholders = ", ".join(["%s"] * len(run_ids))
    sql = _TOOLS.format(calls=AgentRunToolCall._meta.db_table, placeholders=placeholders, limit=MAX_NAMES)
    with connection.cursor() as cursor:
        cursor.execute(sql, [*(key.get_db_prep_value(each, connection) for each in run_ids), ToolStatus.ERROR])
        return [ToolSums(*row) for row in cursor]


#: The percentiles are nearest ranks, as in `project_sums.Sums.percentile_s`.
_TOOLS = """
WITH ranked AS (
    SELECT tool_name, status, duration_ms, COUNT(duration_ms) OVER (PARTITION BY tool_name) AS number,
        ROW_NUMBER() OVER (
            PARTITION BY tool_name ORDER BY CASE WHEN duration_ms IS NULL THEN 1 ELSE 0 END, duration_ms
        ) AS duration_rank
    FROM {calls} WHERE starts > 0 AND run_id IN ({placeholders})
)
SELECT tool_name, COUNT(*), COUNT(CASE WHEN status = %s THEN 1 END),
    MIN(CASE WHEN duration_rank >= 0.5 * number THEN duration_ms END),
    MIN(CASE WHEN duration_rank >= 0.95 * number THEN duration_ms END)
FROM ranked GROUP BY tool_name ORDER BY COUNT(*) DESC, tool_name LIMIT {limit}
"""


#: The period of an agent's activity.
RECENT = timedelta(days=7)


@dataclass
class AgentActivity:
    """The runs of an agent created since a time."""

    since: datetime
    #: Status → number of runs, the most frequent first.
    by_status: dict[str, int] = field(default_factory=dict)

    @property
    def runs(self) -> int:
        return sum(self.by_status.values())


def with_last_run(agents: QuerySet[Agent]) -> QuerySet[Agent]:
    """Annotate agents with their newest run: its ID, status and creation time."""
    newest = AgentRun.objects.filter(agent=OuterRef("pk")).order_by("-created_at")
    return agents.annotate(
        last_run=Subquery(newest.values("log")[:1], output_field=UUIDField()),
        last_status=Subquery(newest.values("status")[:1]),
        last_run_at=Subquery(newest.values("created_at")[:1]),
    )


def activity_of(agent_ids: Sequence[UUID], now: datetime) -> dict[UUID, AgentActivity]:
    """Return the activity of agents in the period `RECENT`. One query."""
    since = now - RECENT
    runs = AgentRun.objects.filter(agent__in=agent_ids, created_at__gte=since)
    counts = runs.values_list("agent_id", "status").annotate(count=Count("pk")).order_by("-count", "status")
    activity = {agent_id: AgentActivity(since) for agent_id in agent_ids}
    for agent_id, status, count in counts:
        if agent_id is not None:
            activity[agent_id].by_status[status] = count
    return activity
