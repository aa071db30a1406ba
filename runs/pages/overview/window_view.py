"""The totals of ended runs as tables and charts, over 24 hours, 7 days or 30 days."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from agentops.accounts.models import Project
from runs.models import Agent
from runs.pages.overview import charts
from runs.pages.overview.charts import Axes, Chart, Series
from runs.pages.runs.run_row import short_number
from runs.queries.overview import recent_calls
from runs.queries.overview.ended_runs import MAX_RUNS, EndedRun, Sums, ended_since, period_of, sums_by, sums_of
from runs.statuses import RunStatus
from timeline.display import clean, dollars, format_ms, total_cost

#: Maximum agents, and flows, in a table: those with the most runs.
MAX_AGENTS = 10
NOTHING = "–"
UNNAMED = "(unnamed agent)"
DELETED_FLOW = "(deleted flow)"
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
    """The totals of a group of runs as texts. `share` is its runs in percent of the largest group's, for a bar."""

    name: str
    runs: str
    failed: str
    failure_rate: str
    p50: str
    p95: str
    tokens_in: str
    tokens_out: str
    cost: str
    #: Share of the runs without a known cost; empty if all costs are known.
    unpriced: str
    share: int = 0


@dataclass(frozen=True)
class NameRow:
    """A model or a tool as texts; `share` as in `SumsRow`."""

    name: str
    cells: Sequence[str]
    share: int


@dataclass(frozen=True)
class RunWindow:
    """The runs that ended in a range. `runs` holds the newest of them."""

    range: Range
    now: datetime
    runs: Sequence[EndedRun]

    @classmethod
    def read(cls, project: Project, chosen: Range, now: datetime) -> RunWindow:
        """Read the runs. One query."""
        return cls(chosen, now, ended_since(project, now - chosen.length))

    @property
    def cut_at(self) -> datetime | None:
        """Return the end of the oldest run that was read, if the range has older runs."""
        return self.runs[-1].completed_at if len(self.runs) == MAX_RUNS else None

    def within(self, length: timedelta) -> list[EndedRun]:
        """Return the runs of a shorter range."""
        return [run for run in self.runs if run.completed_at >= self.now - length]

    def periods(self) -> list[datetime]:
        """Return the start times of the charts' periods, oldest first.

        The last period is the current, incomplete one.
        """
        last = period_of(self.now, self.range.step)
        return [last - index * self.range.step for index in range(self.range.length // self.range.step - 1, -1, -1)]


def total_row(name: str, runs: Sequence[EndedRun]) -> SumsRow:
    return _row(name, sums_of(runs), 0)


def agent_rows(runs: Sequence[EndedRun]) -> list[SumsRow]:
    """Return the agents with the most runs. External runs, and runs of deleted agents, use their recorded name.

    One query.
    """
    ids = {run.agent_id for run in runs if run.agent_id is not None}
    names: Mapping[UUID | None, str] = dict(Agent.objects.filter(pk__in=ids).values_list("pk", "slug"))
    groups = sums_by(runs, lambda run: names.get(run.agent_id) or run.agent_name or UNNAMED)
    largest = sorted(groups.items(), key=lambda pair: -pair[1].total)[:MAX_AGENTS]
    most = largest[0][1].total if largest else 1
    return [_row(clean(name), sums, most) for name, sums in largest]


def flow_rows(flows: Mapping[str, Sums]) -> list[SumsRow]:
    """Return the flows with the most runs. Tokens, cost and durations are totals of the runs of their nodes."""
    largest = sorted(flows.items(), key=lambda pair: -pair[1].total)[:MAX_AGENTS]
    most = largest[0][1].total if largest else 1
    return [
        replace(
            _row(clean(slug) or DELETED_FLOW, sums, most),
            p50=NOTHING, p95=NOTHING, tokens_in=NOTHING, tokens_out=NOTHING, cost=NOTHING,
        )
        for slug, sums in largest
    ]  # fmt: skip


def model_rows(run_ids: Sequence[Any]) -> list[NameRow]:
    """Return calls, tokens, cost and the unpriced share of each model. One query."""
    models = recent_calls.sums_by_model(list(run_ids))
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
    tools = recent_calls.sums_by_tool(list(run_ids))
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
    return total_cost(cost, unpriced_calls) if is_known else NOTHING


def _duration(seconds: float | None) -> str:
    return NOTHING if seconds is None else _show_seconds(seconds)


def _ms(milliseconds: int | None) -> str:
    return NOTHING if milliseconds is None else format_ms(milliseconds)


def _show_seconds(seconds: float) -> str:
    """Return a duration for display. Many tools, and runs of scripts, take less than a second."""
    return format_ms(1000 * seconds)
