"""Usage by model, for a run and for the newest runs of a project."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Count, Q, Sum

from runs.conversation.writes import TOKENS
from runs.models import AgentRun, TurnUsage

#: Maximum number of newest runs to read.
MAX_RUNS = 500
MAX_MODELS = 100
MAX_NOTES = 20


@dataclass(frozen=True)
class UsedModel:
    """A model, by the name in its answers."""

    name: str
    calls: int
    #: Calls whose cost is unknown.
    unpriced: int


def usage_by_model(run_id: UUID) -> list[dict[str, Any]]:
    """Return the number of calls, the tokens and the cost of each model, by name. One query.

    Calls without a lasting answer are included; `unpriced` is the number of calls without a known cost. `cost_usd` is
    None if the cost of no call is known.
    """
    sums: dict[str, Any] = {name: Sum(name) for name in (*TOKENS, "cost_usd")}
    rows: Any = TurnUsage.objects.filter(run=run_id).values("model").order_by("model")
    counts = {
        # Extra usage that a program reports beyond its answers does not count as a call.
        "calls": Count("pk", filter=~Q(outcome=TurnUsage.Outcome.PROGRAM)),
        "unpriced": Count("pk", filter=Q(cost_usd=None)),
    }
    return list(rows.annotate(**counts, **sums))


@dataclass(frozen=True)
class CostNote:
    """The reason why the cost of calls is unknown, or the source of their price."""

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
        TurnUsage.objects.filter(run__in=list(newest[:MAX_RUNS])).exclude(model="")
        .values_list("model")
        .annotate(calls=Count("pk"), unpriced=Count("pk", filter=Q(cost_usd=None)))
        .order_by("-unpriced", "model")
    )  # fmt: skip
    return [UsedModel(*row) for row in rows[:MAX_MODELS]]
