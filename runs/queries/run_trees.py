"""Trees of runs: the usage of a run and all runs below it, and the path from the top run to a run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db import connection

from runs.models import AgentRun
from runs.queries.json_lists import id_param, uuid_of

#: Maximum ancestors that a page lists. Native runs have at most two; external runs may have more.
MAX_ANCESTORS = 20
#: The precision of a stored cost.
_COST_PRECISION = Decimal("0.00000001")
#: Sums over each `top` run and all runs below it. UNION instead of UNION ALL, so that a cycle would end.
_TREE = """
WITH RECURSIVE tree (top, id) AS (
    SELECT r.id, r.id FROM agent_runs r WHERE r.id IN ({tops})
    UNION
    SELECT tree.top, r.id FROM tree JOIN agent_runs r ON r.parent_run_id = tree.id WHERE r.removed_at IS NULL
)
SELECT tree.top, COUNT(*) - 1, SUM(r.input_tokens), SUM(r.output_tokens), SUM(r.cost_usd), SUM({unpriced})
FROM tree JOIN agent_runs r ON r.id = tree.id GROUP BY tree.top
"""
#: The number of unpriced calls of a run. At least 1 if it has tokens and no cost: a runner may report no calls.
UNPRICED_CALLS = (
    "CASE WHEN {r}.cost_usd IS NULL AND {r}.unpriced_calls = 0 AND {r}.input_tokens + {r}.output_tokens > 0 THEN 1"
    " ELSE {r}.unpriced_calls END"
)


@dataclass(frozen=True)
class TreeTotals:
    """The total usage of a run and all runs below it."""

    #: Number of runs below.
    below: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    #: The sum of the known costs; None if none is known.
    cost_usd: Decimal | None = None
    #: Number of model calls whose cost is unknown.
    unpriced: int = 0


def tree_totals(run_ids: Collection[UUID]) -> dict[UUID, TreeTotals]:
    """Return the totals of each of these runs. One query."""
    if not run_ids:
        return {}
    # Only placeholders are inserted.
    sql = _TREE.format(tops=", ".join(["%s"] * len(run_ids)), unpriced=UNPRICED_CALLS.format(r="r"))
    with connection.cursor() as cursor:
        cursor.execute(sql, [id_param(run_id) for run_id in run_ids])
        return {uuid_of(top): _totals(*counts) for top, *counts in cursor.fetchall()}


def ancestors_of(run: AgentRun) -> list[AgentRun]:
    """Return the ancestors of a run, from the top, at most `MAX_ANCESTORS`. One query for each."""
    chain: list[AgentRun] = []
    parent_id = run.parent_run_id
    while parent_id is not None and len(chain) < MAX_ANCESTORS:
        parent = AgentRun.objects.filter(pk=parent_id).only("title", "parent_run_id").first()
        if parent is None:
            break
        chain.insert(0, parent)
        parent_id = parent.parent_run_id
    return chain


def _totals(below: int, tokens_in: int, tokens_out: int, cost: Any, unpriced: int) -> TreeTotals:
    # The sum of SQLite is a float.
    known = None if cost is None else Decimal(cost).quantize(_COST_PRECISION)
    return TreeTotals(below, int(tokens_in), int(tokens_out), known, int(unpriced))
