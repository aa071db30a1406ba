"""A run as a row of the list, formatted for its template."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import TypedDict
from uuid import UUID

from django.conf import settings
from django.urls import reverse
from django.utils.html import escape

from agentops.projects.management.base import printable
from runs.models import AgentRun
from runs.queries.durations import times_of
from runs.statuses import RunStatus
from timeline.shown import clean, lasting

NOTHING = "–"
UNTITLED = "(untitled)"
_PLACEHOLDER_ID = UUID(int=0)


class Moment(TypedDict):
    """A time in ISO 8601 and as a relative time, in the format of static/js/time.js."""

    at: str
    ago: str


class RunRow(TypedDict):
    """The formatted texts of a row.

    Formatting here is faster than in the template, which has 50 rows; so is a dict, which templates look up first.
    Most texts are escaped already.
    """

    id: str
    href: str
    status: str
    reason: str
    agent: str
    title: str
    summary: str
    started: Moment | None
    last_event: Moment | None
    #: Time with a worker, without waits.
    duration: str
    #: Start of the duration of a running run, in ISO 8601; empty for other runs.
    counts_from: str
    steps: str
    step_limit: str
    tokens_in: str
    tokens_out: str
    tokens: str
    cost: str
    cost_source: str
    source: str
    is_continuation: bool
    is_child: bool
    #: Whether the run has ended, so that the row does not change any more.
    has_ended: bool


def rows_of(runs: Iterable[AgentRun], now: datetime) -> list[RunRow]:
    """Return the rows of runs that were read with RunQuerySet.for_list and `with_times`."""
    # Resolve the URL once: only the ID differs.
    page = escape(reverse("runs:detail", args=[_PLACEHOLDER_ID]))
    return [_row(run, page.replace(str(_PLACEHOLDER_ID), str(run.pk)), now) for run in runs]


def _row(run: AgentRun, href: str, now: datetime) -> RunRow:
    times = times_of(run, now)
    tokens = f"{run.input_tokens:,} in, {run.output_tokens:,} out" if run.input_tokens or run.output_tokens else ""
    return RunRow(
        id=escape(run.pk),
        href=href,
        status=_escaped(run.status),
        reason=_escaped(run.status_reason.replace("_", " ")),
        agent=_agent_name(getattr(run, "agent_name", None) or ""),
        title=escape(_line(run.title) or UNTITLED),
        summary=escape(_line(getattr(run, "summary_start", ""))),
        started=_moment(run.started_at, now),
        last_event=_moment(run.log.last_event_at, now),
        duration=_escaped(lasting(times.worked_s) if times else NOTHING),
        counts_from=times.counts_from.isoformat() if times and run.state is RunStatus.RUNNING else "",
        steps=_escaped(str(run.step_count)),
        step_limit=_escaped(str(run.step_limit(settings.AGENTOPS_MAX_TOTAL_STEPS))),
        tokens_in=_escaped(rounded(run.input_tokens)),
        tokens_out=_escaped(rounded(run.output_tokens)),
        tokens=tokens,
        cost=_escaped(dollars(run.cost_usd)),
        cost_source=_escaped(run.cost_source),
        source=_escaped(run.source),
        is_continuation=run.resumed_from_id is not None,
        is_child=run.parent_run_id is not None,
        has_ended=run.state.terminal,
    )


@lru_cache(maxsize=4096)
def _escaped(text: str) -> str:
    """Return `text` escaped. Cached, because many rows have the same statuses and numbers."""
    return escape(text)


@lru_cache(maxsize=1024)
def _agent_name(agent: str) -> str:
    return escape(_line(agent) or NOTHING)


def ago(seconds: float) -> str:
    """Return a relative time such as "3 min ago"."""
    if seconds < 5:
        return "just now"
    if seconds < 60:
        return f"{seconds:.0f} s ago"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min ago"
    return f"{seconds // 3600:.0f} h ago" if seconds < 86_400 else f"{seconds // 86_400:.0f} d ago"


def rounded(number: int) -> str:
    """Return a number with at most three digits and a unit prefix, such as "1.5k"."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.1f}{unit}" if number < 10 * size else f"{number // size}{unit}"
    return str(number)


def dollars(cost: Decimal | None) -> str:
    """Return a cost with two decimals, or four below $1; empty if it is unknown."""
    if cost is None:
        return ""
    return f"${cost:.2f}" if cost >= 1 or not cost else f"${cost:.4f}"


def _moment(at: datetime | None, now: datetime) -> Moment | None:
    return Moment(at=at.isoformat(), ago=_escaped(ago((now - at).total_seconds()))) if at else None


def _line(text: object) -> str:
    return printable(clean(str(text or ""))).strip()
