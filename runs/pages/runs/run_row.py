"""A run as a row of the list, formatted for its template."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from typing import TypedDict
from uuid import UUID

from django.conf import settings
from django.urls import reverse
from django.utils.html import escape, format_html, format_html_join

from agentops.accounts.management.base import printable
from agentops.base import database_clock
from runs.models import AgentRun
from runs.pages.runs.listed_run import ListedRun
from runs.queries.durations import times_between
from runs.queries.place_waits import PlaceWait, place_waits
from runs.statuses import RunStatus
from timeline.display import calls_unpriced, clean, dollars, format_elapsed
from timeline.reasons import reason_label

NOTHING = "–"
UNTITLED = "(untitled)"
_PLACEHOLDER_ID = UUID(int=0)
#: Maximum labels of a row; others are counted.
MAX_CHIPS = 3


class RunRow(TypedDict):
    """The formatted texts of a row. Times are in ISO 8601 and relative."""

    id: str
    href: str
    status: str
    reason: str
    agent: str
    title: str
    summary: str
    #: Chips, as HTML.
    labels: str
    created_at: str
    created_ago: str
    started_at: str
    started_ago: str
    last_event_at: str
    last_event_ago: str
    #: Time with a worker, without waits.
    duration: str
    #: Start of the duration of a running run, in ISO 8601; empty for other runs.
    counts_from: str
    steps: str
    step_limit: str
    tokens_in: str
    tokens_out: str
    tokens: str
    #: `unpriced` is the number of model calls without a known price; empty without any.
    cost: str
    unpriced: str
    cost_source: str
    source: str
    is_continuation: bool
    is_child: bool
    #: Number of child runs; empty without child runs. `tree` is the URL of the tree.
    children: str
    tree: str
    #: Whether the run has ended, so that the row does not change any more.
    has_ended: bool


def rows_of(runs: Iterable[ListedRun], now: datetime) -> list[RunRow]:
    """Return the rows of runs. Sends a query if a run is queued."""
    # Resolve the URL once: only the ID differs.
    page = reverse("runs:detail", args=[_PLACEHOLDER_ID])
    runs = list(runs)
    waits = place_waits([run.pk for run in runs if run.status == RunStatus.QUEUED])
    return [_row(run, page.replace(str(_PLACEHOLDER_ID), str(run.pk)), now, waits.get(run.pk)) for run in runs]


def _row(run: ListedRun, href: str, now: datetime, place: PlaceWait | None) -> RunRow:
    times = times_between(run, run.last_event_at, (run.worked_time, run.open_since), now)
    tokens = f"{run.input_tokens:,} in, {run.output_tokens:,} out" if run.input_tokens or run.output_tokens else ""
    return RunRow(
        id=str(run.pk),
        href=href,
        status=_escape(run.status),
        reason=_escape(str(place) if place is not None else reason_label(run.status_reason)),
        agent=_line(run.agent_name or "") or NOTHING,
        title=_line(run.title) or UNTITLED,
        summary=_line(run.summary_start),
        labels=_chips(tuple(run.labels)) if isinstance(run.labels, list) else "",
        created_at=_iso(run.created_at),
        created_ago=_ago(run.created_at, now),
        started_at=_iso(run.started_at),
        started_ago=_ago(run.started_at, now),
        last_event_at=_iso(run.last_event_at),
        last_event_ago=_ago(run.last_event_at, now),
        duration=_escape(format_elapsed(times.worked_s) if times else NOTHING),
        counts_from=_iso(times.counts_from) if times else "",
        steps=_escape(str(run.step_count)),
        step_limit=_escape(_step_limit(run)),
        tokens_in=_escape(short_number(run.input_tokens)),
        tokens_out=_escape(short_number(run.output_tokens)),
        tokens=_escape(tokens),
        cost=_escape(dollars(run.cost_usd)),
        unpriced=_escape(calls_unpriced(run.unpriced_calls)) if run.unpriced_calls else "",
        cost_source=_escape(run.cost_source),
        source=_escape(run.source),
        is_continuation=run.resumed_from_id is not None,
        is_child=run.parent_run_id is not None,
        children=_escape(str(run.child_count or "")),
        tree=f"{href}/tree" if run.child_count else "",
        has_ended=run.state.terminal,
    )


def _step_limit(run: ListedRun) -> str:
    """Return the last allowed step; empty for an external run, which has no limit here."""
    limit = min(run.step_base + run.max_steps, settings.AGENTOPS_MAX_TOTAL_STEPS)
    return str(limit) if run.source == AgentRun.Source.NATIVE else ""


@lru_cache(maxsize=4096)
def _escape(text: str) -> str:
    """Return `text` escaped. Cached, because many rows have the same statuses and numbers."""
    return escape(text)


def _iso(at: datetime | None) -> str:
    return at.isoformat() if at else ""


def _ago(at: datetime | None, now: datetime) -> str:
    return _escape(ago(database_clock.seconds_between(at, now))) if at else ""


def ago(seconds: float) -> str:
    """Return a relative time such as "3 min ago", in the format of static/js/time.js."""
    if seconds < 5:
        return "just now"
    if seconds < 60:
        return f"{seconds:.0f} s ago"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min ago"
    return f"{seconds // 3600:.0f} h ago" if seconds < 86_400 else f"{seconds // 86_400:.0f} d ago"


def short_number(number: int) -> str:
    """Return a number with at most three digits and a unit prefix, such as "1.5k"."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.1f}{unit}" if number < 10 * size else f"{number // size}{unit}"
    return str(number)


@lru_cache(maxsize=1024)
def _line(text: str) -> str:
    """Return `text` as a line, redacted and escaped. Cached, because open pages show the same runs repeatedly."""
    return escape(printable(clean(text)).strip())


@lru_cache(maxsize=1024)
def _chips(labels: tuple[object, ...]) -> str:
    """Return labels as chips. Cached, because many runs have the same labels."""
    lines = ((_line(str(label)),) for label in labels[:MAX_CHIPS])
    shown = format_html_join(" ", '<span class="chip"><bdi>{}</bdi></span>', lines)
    more = len(labels) - MAX_CHIPS
    return format_html('{} <span class="muted">+{}</span>', shown, more) if more > 0 else shown
