"""A run as a row of the list: what is shown of it, in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from uuid import UUID

from django.conf import settings

from agentops.projects.management.base import printable
from runs.models import AgentRun
from runs.queries.durations import times_of
from runs.statuses import RunStatus
from timeline.shown import clean, lasting


@dataclass(frozen=True)
class Moment:
    """A time and how long ago it was, as static/js/time.js says it too."""

    at: datetime
    ago: str


@dataclass(frozen=True)
class RunRow:
    id: UUID
    status: str
    reason: str
    agent: str
    title: str
    summary: str
    started: Moment | None
    last_event: Moment | None
    #: How long workers had it; its waits are not in it.
    duration: str
    #: A worker has the run: the duration counts up from then.
    counts_from: datetime | None
    steps: int
    step_limit: int
    tokens_in: str
    tokens_out: str
    tokens: str
    cost: str
    cost_source: str
    source: str
    is_continuation: bool
    is_child: bool
    #: Nothing of it changes any more.
    over: bool


def rows_of(runs: Iterable[AgentRun], now: datetime) -> list[RunRow]:
    """Of runs as RunQuerySet.for_list and `with_times` load them."""
    return [_row(run, now) for run in runs]


def _row(run: AgentRun, now: datetime) -> RunRow:
    last_event_at = run.log.last_event_at
    times = times_of(run, now)
    return RunRow(
        id=run.pk,
        status=run.status,
        reason=run.status_reason.replace("_", " "),
        agent=_line(getattr(run, "agent_name", None)),
        title=_line(run.title),
        summary=_line(getattr(run, "summary_start", "")),
        started=_moment(run.started_at, now),
        last_event=_moment(last_event_at, now),
        duration="" if times is None else lasting(times.worked_s),
        counts_from=times.counts_from if times is not None and run.state is RunStatus.RUNNING else None,
        steps=run.step_count,
        step_limit=run.step_limit(settings.AGENTOPS_MAX_TOTAL_STEPS),
        tokens_in=rounded(run.input_tokens),
        tokens_out=rounded(run.output_tokens),
        tokens=f"{run.input_tokens:,} in, {run.output_tokens:,} out" if run.input_tokens or run.output_tokens else "",
        cost=dollars(run.cost_usd),
        cost_source=run.cost_source,
        source=run.source,
        is_continuation=run.resumed_from_id is not None,
        is_child=run.parent_run_id is not None,
        over=run.state.terminal,
    )


def ago(seconds: float) -> str:
    if seconds < 5:
        return "just now"
    if seconds < 60:
        return f"{seconds:.0f} s ago"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min ago"
    return f"{seconds // 3600:.0f} h ago" if seconds < 86_400 else f"{seconds // 86_400:.0f} d ago"


def rounded(number: int) -> str:
    """Three digits at most, and how many thousands."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.1f}{unit}" if number < 10 * size else f"{number // size}{unit}"
    return str(number)


def dollars(cost: Decimal | None) -> str:
    """Cents and, of less than one, as many digits as say something; nothing where nobody knows."""
    if cost is None:
        return ""
    return f"${cost:.2f}" if cost >= 1 or not cost else f"${cost:.4f}"


def _moment(at: datetime | None, now: datetime) -> Moment | None:
    return Moment(at, ago((now - at).total_seconds())) if at else None


def _line(text: object) -> str:
    return printable(clean(str(text or ""))).strip()
