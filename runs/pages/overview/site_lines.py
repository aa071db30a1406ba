"""One status line for each service of a project: workers, queue, event senders, sinks, daily budgets.

A line is omitted if its subject does not exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from django.conf import settings
from django.db.models import Count, Max, Sum

from agentops.accounts.models import Project
from agentops.base import database_clock
from agentops.base.database_clock import Now
from runs.agents import budgets
from runs.agents.budgets import Budget
from runs.external.ingest_counts import ACCEPTED, NOT_REFUSED
from runs.models import AgentRun, IngestCount, Sink
from runs.queries.overview.day_use import used_since
from runs.queries.overview.flow_sums import unended_by_status
from runs.queries.overview.needs import label_of
from runs.queries.sink_health import lag_s, with_health
from runs.statuses import RunStatus
from timeline.display import clean, format_duration

#: Maximum number of sinks to check.
MAX_SINKS = 50
_UNENDED = (RunStatus.RUNNING, RunStatus.WAITING, RunStatus.PAUSED, RunStatus.QUEUED)
#: Minutes over which the event rate is measured.
RATE_MINUTES = 5


@dataclass(frozen=True)
class SiteLine:
    """A status line. `is_concern`: there is a problem. `used` and `limit`: of a budget, for a meter."""

    name: str
    text: str
    is_concern: bool = False
    used: float = 0
    limit: float = 0


def live_lines(project: Project, now: datetime) -> Iterator[SiteLine]:
    """Yield the lines about workers, flow runs and senders. Four queries."""
    held = AgentRun.objects.filter(project=project, status=RunStatus.RUNNING, source=AgentRun.Source.NATIVE)
    beat = held.filter(lease_expires_at__gte=Now()).aggregate(
        workers=Count("lease_owner", distinct=True), runs=Count("pk"), newest=Max("lease_expires_at")
    )
    queued = AgentRun.objects.filter(project=project, status=RunStatus.QUEUED, source=AgentRun.Source.NATIVE)
    waiting = queued[:100].count()
    queue = f"; {label_of(waiting)} in the queue" if waiting else ""
    if beat["workers"]:
        age = max((now - beat["newest"]).total_seconds() + settings.AGENTOPS_LEASE_S, 0.0)
        workers = f"{beat['workers']} worker{'s' * (beat['workers'] != 1)}"
        runs = f"{beat['runs']} run{'s' * (beat['runs'] != 1)}"
        yield SiteLine("Workers", f"{workers} with {runs}, last heartbeat {format_duration(age)} ago{queue}")
    else:
        yield SiteLine("Workers", f"none has a run of this project{queue}; idle workers are not counted")
    if flow_runs := unended_by_status(project):
        counts = [f"{flow_runs[status]} {status.value}" for status in _UNENDED if status in flow_runs]
        yield SiteLine("Flow runs", ", ".join(counts))
    yield from _ingest(project, now)


def _ingest(project: Project, now: datetime) -> Iterator[SiteLine]:
    minute = now.replace(second=0, microsecond=0)
    begin = minute - timedelta(minutes=RATE_MINUTES - 1)
    rows = IngestCount.objects.filter(project=project, minute__gt=now - timedelta(days=1)).values("outcome")
    outcomes = {row["outcome"]: row for row in rows.annotate(count=Sum("count"), last=Max("last_at"))}
    if not outcomes:
        return
    recent = IngestCount.objects.filter(project=project, minute__gte=begin, outcome=ACCEPTED)
    minutes = (now - begin).total_seconds() / 60
    rate = (recent.aggregate(count=Sum("count"))["count"] or 0) / minutes
    rejected = sum(row["count"] for name, row in outcomes.items() if name not in NOT_REFUSED)
    last = max(row["last"] for row in outcomes.values())
    text = f"{rate:,.0f} events/min, last {format_duration(database_clock.seconds_between(last, now))} ago"
    if rejected:
        text += f"; {rejected:,} rejected in 24 hours"
    yield SiteLine("Events received", text, is_concern=bool(rejected))


def still_lines(project: Project, now: datetime) -> Iterator[SiteLine]:
    """Yield the lines about sinks and daily budgets. Two queries."""
    sinks = list(with_health(Sink.objects.filter(project=project).order_by("name"))[:MAX_SINKS])
    if sinks:
        yield _sinks(sinks)
    try:
        limits = budgets.day_limits(project.settings)
    except budgets.InvalidBudget as error:
        yield SiteLine("Daily budgets", f"cannot be read: {error}", is_concern=True)
        return
    if limits:
        midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        tokens, cost = used_since(project.pk, midnight)
        used = {Budget.TOKENS_PER_DAY: Decimal(tokens), Budget.COST_PER_DAY: cost}
        nearly = budgets.nearly_exhausted(limits, used)
        for budget, limit in limits.items():
            text = budgets.describe(budget, used[budget], limit).replace(" by the project today", "")
            yield SiteLine("Budget today", text, budget in nearly, float(min(used[budget], limit)), float(limit))


def _sinks(sinks: list[Sink]) -> SiteLine:
    if any(sink.is_paused for sink in sinks):
        return SiteLine("Sinks", "paused: the telemetry of the project is off")
    behind = [(lag_s(sink), sink) for sink in sinks if sink.is_enabled]
    late = [(lag, sink) for lag, sink in behind if lag]
    off = [sink for sink in sinks if sink.disabled_reason]
    if off:
        return SiteLine("Sinks", f"{clean(off[0].name)} was switched off after failures", is_concern=True)
    if late:
        lag, sink = max(late, key=lambda pair: pair[0])
        return SiteLine("Sinks", f"{clean(sink.name)} is {format_duration(lag)} behind", is_concern=True)
    return SiteLine("Sinks", f"{len(behind)} of {len(sinks)} switched on, all up to date")
