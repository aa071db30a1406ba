"""The cost and the tokens of a run, by model and by step, and together with its child runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.base.http.methods import require_safe
from runs.agents.prices import Buckets
from runs.conversation.writes import TOKENS
from runs.models import AgentRun
from runs.pages.page_parts import split_page
from runs.pages.run.any_run import tab_context
from runs.pages.run.timeline_page import seq_of
from runs.queries.run_trees import TreeTotals, tree_totals
from runs.queries.usage import StepCost, cost_notes, step_costs, usage_by_model
from timeline.display import clean, dollars, total_cost

#: Maximum steps on a page.
PAGE_SIZE = 200
#: The disjoint buckets of tokens, and the headings of their columns.
_BUCKETS = ("input", "cache_read", "cache_write", "cache_write_1h", "output", "reasoning")
COLUMNS = ("fresh", "cache read", "cache write", "cache write 1 h", "output", "reasoning")


@dataclass(frozen=True)
class CostLine:
    """A row of a table: a model or a step."""

    name: str
    calls: int
    unpriced: int
    #: The counts of COLUMNS.
    tokens: list[int]
    cost: str


@dataclass(frozen=True)
class StepBar:
    """A bar of the chart. `x`, `width`, `y` and `height` are percentages of the chart."""

    step: int
    x: float
    width: float
    y: float
    height: float
    label: str


@require_safe
def cost(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Show the cost of the run, with the steps after step `after`."""
    context = tab_context(request, run_id, "cost")
    run, data = context["run"], context["facts"]
    after = min(seq_of(request, "after") or 0, 2**31 - 1)
    steps, has_more = split_page(step_costs(run_id, after, PAGE_SIZE + 1), PAGE_SIZE)
    models = usage_by_model(run_id)
    has_costs = any(step.cost_usd is not None for step in steps)
    bars = _bars(steps, by_cost=has_costs)
    totals = tree_totals([run_id]).get(run_id) if context["head"].child_count else None
    context |= {
        "columns": COLUMNS,
        "models": [_model_line(row) for row in models],
        "steps": [_step_line(step) for step in steps],
        "bars": bars,
        "highest": max(bars, key=lambda bar: bar.height, default=None),
        "by_cost": has_costs,
        "own": total_cost(run.cost_usd, run.unpriced_calls),
        "notes": cost_notes(run_id),
        "tree": totals,
        "tree_cost": total_cost(totals.cost_usd, totals.unpriced) if totals is not None else "",
        "children_cost": _children_cost(totals, run),
        "calls": sum(row["calls"] for row in models),
        "unpriced": sum(row["unpriced"] for row in models),
        "share": _share(models),
        "billing": data.billing,
        "next_after": steps[-1].step if has_more else None,
        "after": after,
        "range": (steps[0].step, steps[-1].step, run.step_count) if steps and (after or has_more) else None,
    }
    return render(request, "runs/tabs/cost.html", context)


def _model_line(row: Mapping[str, Any]) -> CostLine:
    tokens = _tokens({name: row[name] or 0 for name in TOKENS})
    name = clean(row["model"]) or "unknown model"
    return CostLine(name, row["calls"], row["unpriced"], tokens, total_cost(row["cost_usd"], row["unpriced"]))


def _step_line(step: StepCost) -> CostLine:
    tokens = _tokens({name: getattr(step, name) for name in TOKENS})
    return CostLine(str(step.step), step.calls, step.unpriced, tokens, total_cost(step.cost_usd, step.unpriced))


def _tokens(counts: Mapping[str, int]) -> list[int]:
    """Return disjoint counts: providers count the cache with the input, and reasoning with the output."""
    buckets = Buckets.of(
        counts["input_tokens"],
        counts["output_tokens"],
        cache_read=counts["cache_read_tokens"],
        cache_write=counts["cache_write_tokens"],
        cache_write_1h=counts["cache_write_1h_tokens"],
        reasoning=counts["reasoning_tokens"],
    )
    return [getattr(buckets, name) for name in _BUCKETS]


def _bars(steps: Sequence[StepCost], *, by_cost: bool) -> list[StepBar]:
    """Return a bar for each step. Its height is the cost, or the tokens if no cost is known."""
    values = [
        (step.cost_usd or Decimal(0)) if by_cost else Decimal(step.input_tokens + step.output_tokens) for step in steps
    ]
    highest = max(values, default=Decimal(0))
    if not highest:
        return []
    width, bars = 100 / len(steps), []
    for number, (step, value) in enumerate(zip(steps, values, strict=True)):
        height = float(value / highest * 100)
        text = dollars(step.cost_usd) if by_cost else f"{value:,} tokens"
        label = f"Step {step.step}: {text or 'unpriced'}"
        bars.append(StepBar(step.step, round(number * width, 3), round(width * 0.8, 3), 100 - height, height, label))
    return bars


def _children_cost(totals: TreeTotals | None, run: AgentRun) -> str:
    """Return the cost of the descendants, which is the cost of the tree without the run; empty if it is unknown."""
    if totals is None or totals.cost_usd is None:
        return ""
    cost = max(totals.cost_usd - (run.cost_usd or 0), Decimal(0))
    return total_cost(cost, max(totals.unpriced - run.unpriced_calls, 0))


def _share(models: Sequence[Mapping[str, Any]]) -> int:
    """Return the percentage of model calls without a known cost."""
    calls = sum(row["calls"] for row in models)
    return round(100 * sum(row["unpriced"] for row in models) / calls) if calls else 0
