"""The totals of runs that ended in the last 24 hours, 7 days or 30 days, as tables and charts, and their page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.accounts.access import Action, enter
from agentops.accounts.models import Project
from agentops.accounts.requests import principal_of
from agentops.base import database_clock
from agentops.base.http.methods import require_safe
from agentops.base.refusals import InvalidQuery
from runs.models import Agent
from runs.pages import charts
from runs.pages.charts import Axes, Chart, Series
from runs.pages.page_parts import project_context
from runs.pages.runs.run_row import short_number
from runs.queries import usage
from runs.queries.project_sums import MAX_RUNS, EndedRun, Sums, ended_by_flow, ended_since, period_of, sums_by, sums_of
from runs.statuses import RunStatus
from timeline.display import clean, dollars, format_ms, total_cost

#: Maximum rows of the table of agents, and of the table of flows. They show those with the most runs.
MAX_AGENTS = 10
NOTHING = "–"
UNNAMED = "(unnamed agent)"
DELETED_FLOW = "(deleted flow)"
#: The statuses in which runs end, in the order of the chart.
_OUTCOMES = (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.STOPPED, RunStatus.RESUMED)


@dataclass(frozen=True)
class Range:
    """A period that ends now, and the step size of its charts."""

    name: str
    label: str
    length: timedelta
    step: timedelta


RANGES = {
    each.name: each
    for each in (
        Range("24h", "24 hours", timedelta(days=1), timedelta(hours=1)),
        Range("7d", "7 days", timedelta(days=7), timedelta(hours=6)),
        Range("30d", "30 days", timedelta(days=30), timedelta(days=1)),
    )
}


@dataclass(frozen=True)
class SumsRow:
    """The totals of a group of runs as texts."""

    name: str
    runs: str
    failed: str
    failure_rate: str
    p50: str
    p95: str
    tokens_in: str
    tokens_out: str
    cost: str
    #: The share of runs whose cost is unknown; empty if all costs are known.
    unpriced: str
    #: The length of a bar: the number of runs, in percent of the largest group.
    share: int = 0


@dataclass(frozen=True)
class NameRow:
    """The totals of a model or a tool as texts."""

    name: str
    cells: Sequence[str]
    #: The length of a bar, in percent of the longest.
    share: int


@dataclass(frozen=True)
class RunWindow:
    """The runs that ended in a range."""

    range: Range
    now: datetime
    #: At most MAX_RUNS, newest first.
    runs: Sequence[EndedRun]

    @classmethod
    def read(cls, project: Project, chosen: Range, now: datetime) -> RunWindow:
        """Read the runs. One query."""
        return cls(chosen, now, ended_since(project, now - chosen.length))

    @property
    def cut_at(self) -> datetime | None:
        """Return when the oldest of `runs` ended, if there may be older ones; otherwise None."""
        return self.runs[-1].completed_at if len(self.runs) == MAX_RUNS else None

    def within(self, length: timedelta) -> list[EndedRun]:
        """Return the runs of a shorter range."""
        return [run for run in self.runs if run.completed_at >= self.now - length]

    def periods(self) -> list[datetime]:
        """Return the start times of the periods of charts, oldest first. The last period has not ended yet."""
        last = period_of(self.now, self.range.step)
        return [last - index * self.range.step for index in range(self.range.length // self.range.step - 1, -1, -1)]


def total_row(name: str, runs: Sequence[EndedRun]) -> SumsRow:
    """Return the totals of all runs as one row."""
    return _row(name, sums_of(runs), 0)


def agent_rows(runs: Sequence[EndedRun]) -> list[SumsRow]:
    """Return the agents with the most runs. One query.

    The agent of an external run, and a deleted agent, has the name that is recorded with the run.
    """
    ids = {run.agent_id for run in runs if run.agent_id is not None}
    names: Mapping[UUID | None, str] = dict(Agent.objects.filter(pk__in=ids).values_list("pk", "slug"))
    return _largest(sums_by(runs, lambda run: names.get(run.agent_id) or run.agent_name or UNNAMED))


def flow_rows(flows: Mapping[str, Sums]) -> list[SumsRow]:
    """Return the flows with the most runs. Durations, tokens and costs are known only of the runs of their nodes."""
    unknown = dict.fromkeys(("p50", "p95", "tokens_in", "tokens_out", "cost"), NOTHING)
    return [replace(row, name=row.name or DELETED_FLOW, **unknown) for row in _largest(flows)]  # type: ignore[arg-type]


def _largest(groups: Mapping[str, Sums]) -> list[SumsRow]:
    """Return the groups with the most runs, the largest first."""
    largest = sorted(groups.items(), key=lambda pair: -pair[1].total)[:MAX_AGENTS]
    most = largest[0][1].total if largest else 1
    return [_row(clean(name), sums, most) for name, sums in largest]


def model_rows(run_ids: Sequence[Any]) -> list[NameRow]:
    """Return calls, tokens, cost and the unpriced share of each model. One query."""
    models = usage.sums_by_model(list(run_ids))
    most = max((model.cost_usd for model in models), default=Decimal(0))
    return [
        NameRow(
            clean(model.model) or "(unknown model)",
            [
                f"{model.calls:,}",
                short_number(model.input_tokens),
                short_number(model.output_tokens),
                _cost(model.cost_usd, model.unpriced, is_known=model.unpriced < max(model.calls, 1)),
                percent(model.unpriced / model.calls) if model.calls and model.unpriced else "",
            ],
            int(100 * model.cost_usd / most) if most else 0,
        )
        for model in models
    ]


def tool_rows(run_ids: Sequence[Any]) -> list[NameRow]:
    """Return calls, failures and durations of each tool. One query."""
    tools = usage.sums_by_tool(list(run_ids))
    most = max((tool.p95_ms or 0 for tool in tools), default=0)
    return [
        NameRow(
            clean(tool.name),
            [
                f"{tool.calls:,}",
                f"{tool.failed:,}",
                percent(tool.failed / tool.calls),
                _ms(tool.p50_ms),
                _ms(tool.p95_ms),
            ],
            100 * (tool.p95_ms or 0) // most if most else 0,
        )
        for tool in tools
    ]


def charts_of(window: RunWindow) -> list[Chart]:
    """Return the charts over time: outcomes, durations, tokens, cost."""
    periods = window.periods()
    groups = sums_by(window.runs, lambda run: period_of(run.completed_at, window.range.step))
    sums = [groups.get(at, Sums()) for at in periods]

    def series(name: str, style: str, value: Callable[[Sums], charts.Number]) -> Series:
        return Series(name, style, [value(each) for each in sums])

    outcomes = [
        series(status.value, status.value, lambda each, status=status: each.by_status.get(status, 0))  # type: ignore[misc]
        for status in _OUTCOMES
    ]
    durations = [
        series("p50", "p50", lambda each: each.percentile_s(0.5)),
        series("p95", "p95", lambda each: each.percentile_s(0.95)),
    ]
    tokens = [
        series("input", "input", lambda each: each.input_tokens),
        series("output", "output", lambda each: each.output_tokens),
    ]
    cost = [series("cost", "cost", lambda each: float(each.cost_usd))]
    return [
        charts.stacked(Axes("outcomes", "Outcomes", periods, lambda number: f"{number:,.0f}"), outcomes),
        charts.lines(Axes("durations", "Duration, without waits", periods, _show_seconds), durations),
        charts.stacked(Axes("tokens", "Tokens", periods, lambda number: short_number(int(number))), tokens),
        charts.stacked(Axes("cost", "Cost", periods, lambda number: dollars(Decimal(number))), cost),
    ]


def percent(share: float) -> str:
    """Return a share as a percentage, with one decimal below 10 %."""
    value = 100 * share
    return f"{value:.1f} %" if 0 < value < 10 else f"{value:.0f} %"


def _row(name: str, sums: Sums, most: int) -> SumsRow:
    """Return the totals of a group. `most` is the number of runs of the largest group; 0: no bar."""
    rate = sums.failure_rate
    return SumsRow(
        name=name,
        runs=f"{sums.total:,}",
        failed=f"{sums.failed:,}",
        failure_rate=NOTHING if rate is None else percent(rate),
        p50=_duration(sums.percentile_s(0.5)),
        p95=_duration(sums.percentile_s(0.95)),
        tokens_in=short_number(sums.input_tokens),
        tokens_out=short_number(sums.output_tokens),
        cost=_cost(sums.cost_usd, sums.unpriced_calls, is_known=sums.unpriced < max(sums.with_tokens, 1)),
        unpriced=percent(sums.unpriced / sums.with_tokens) if sums.unpriced else "",
        share=100 * sums.total // most if most else 0,
    )


def _cost(cost: Decimal, unpriced_calls: int, *, is_known: bool) -> str:
    """Return a cost for display. `is_known`: whether the cost of any run or call is known."""
    return total_cost(cost, unpriced_calls) if is_known else NOTHING


def _duration(seconds: float | None) -> str:
    return NOTHING if seconds is None else _show_seconds(seconds)


def _ms(milliseconds: int | None) -> str:
    return NOTHING if milliseconds is None else format_ms(milliseconds)


def _show_seconds(seconds: float) -> str:
    """Return a duration for display. Many tools, and runs of scripts, take less than a second."""
    return format_ms(1000 * seconds)


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show the charts of the range in the URL, 7 days by default, each with a table of the same numbers."""
    entry = enter(principal_of(request), project, Action.READ)
    name = request.GET.get("range", "7d")
    if name not in RANGES:
        raise InvalidQuery(f"range must be one of {', '.join(RANGES)}, not {name[:16]!r}")
    now = database_clock.now()
    window = RunWindow.read(entry.project, RANGES[name], now)
    ids = usage.newest_ended(entry.project, now - window.range.length)
    context = {
        **project_context(entry, "overview"),
        "ranges": RANGES.values(),
        "window": window,
        "totals": [total_row(f"Last {window.range.label}", window.runs)],
        "charts": charts_of(window),
        "agents": agent_rows(window.runs),
        "flows": flow_rows(ended_by_flow(entry.project, now - window.range.length)),
        "models": model_rows(ids),
        "tools": tool_rows(ids),
        "model_runs": len(ids) if len(ids) == usage.MAX_ENDED_RUNS else 0,
        "as_of": now,
    }
    return render(request, "runs/overview/charts.html", context)
