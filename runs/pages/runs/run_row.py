"""A run as a row of the list: its columns, which are read from the database, its formatted texts, and its HTML.

Columns are read without model instances, which take longer to create. The template of a row is rendered once for each
combination of empty columns, such as no summary, with placeholders instead of values. format_html then fills in the
values of each run.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cache, lru_cache
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

from django.conf import settings
from django.db.models import Count, F, OuterRef, Subquery
from django.db.models.functions import Coalesce
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.html import escape, format_html, format_html_join
from django.utils.safestring import SafeString

from agentops.accounts.command_base import printable
from agentops.base import database_clock
from runs.models import AgentRun
from runs.models.querysets import RunQuerySet
from runs.models.run import source_name
from runs.pages.runs.list_columns import DEFAULT
from runs.queries.durations import PlaceWait, place_waits, times_between, with_times
from runs.statuses import RunStatus
from timeline.display import calls_unpriced, clean, dollars, format_elapsed
from timeline.reasons import reason_label


class ListedRun(NamedTuple):
    """A row of the query of the list. The fields are its columns and annotations."""

    pk: UUID
    title: str
    summary_start: str
    agent_name: str | None
    status: str
    status_reason: str
    source: str
    code_version: int | None
    is_packaged: bool
    labels: list[str]
    resumed_from_id: UUID | None
    parent_run_id: UUID | None
    step_base: int
    step_count: int
    max_steps: int
    input_tokens: int
    output_tokens: int
    cost_usd: Decimal | None
    unpriced_calls: int
    cost_source: str
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    last_event_at: datetime | None
    worked_time: timedelta | None
    open_since: datetime | None
    child_count: int

    @property
    def state(self) -> RunStatus:
        return RunStatus(self.status)


def listed_runs() -> RunQuerySet:
    """Return the query of all runs, newest first, for `read`."""
    # A copy, because a query set caches its result.
    return _listed_runs().all()


def read(runs: RunQuerySet) -> list[ListedRun]:
    """Return the rows of a query of `listed_runs`. One query."""
    rows: Iterable[Any] = runs
    return [ListedRun(*row) for row in rows]


@cache
def _listed_runs() -> RunQuerySet:
    """Return the query, built once in a process, because this takes longer than its execution."""
    children = AgentRun.objects.filter(parent_run=OuterRef("pk")).order_by().values("parent_run")
    runs = with_times(AgentRun.objects.all().for_list()).annotate(
        last_event_at=F("log__last_event_at"),
        child_count=Coalesce(Subquery(children.annotate(n=Count("pk")).values("n")), 0),
    )
    return runs.newest_first().values_list(*ListedRun._fields)  # type: ignore[return-value]


#: The texts of a missing value and of a missing title.
NOTHING, UNTITLED = "–", "(untitled)"
_PLACEHOLDER_ID = UUID(int=0)
#: Maximum labels of a row; others are counted.
MAX_CHIPS = 3


class RunRow(TypedDict):
    """The formatted texts of a row. `…_at` are times in ISO 8601, and `…_ago` relative times."""

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
    #: The time with a worker, without waits.
    duration: str
    #: The duration is the time since then, in ISO 8601; empty if it does not grow.
    counts_from: str
    steps: str
    step_limit: str
    tokens_in: str
    tokens_out: str
    tokens: str
    cost: str
    #: The number of model calls without a known price; empty without any.
    unpriced: str
    cost_source: str
    source: str
    #: Whether the run continues another one.
    is_continuation: bool
    is_child: bool
    #: Number of child runs, and the URL of the tree; empty without child runs.
    children: str
    tree: str
    has_ended: bool


def rows_of(runs: Iterable[ListedRun], now: datetime) -> list[RunRow]:
    """Return the rows of runs. One query if any run is queued, otherwise none."""
    # The URL is resolved only once, because this takes longer than replacing the ID.
    page = reverse("runs:detail", args=[_PLACEHOLDER_ID])
    runs = list(runs)
    waits = place_waits([run.pk for run in runs if run.status == RunStatus.QUEUED])
    return [_row(run, page.replace(str(_PLACEHOLDER_ID), str(run.pk)), now, waits.get(run.pk)) for run in runs]


def _row(run: ListedRun, href: str, now: datetime, place_wait: PlaceWait | None) -> RunRow:
    times = times_between(run, run.last_event_at, (run.worked_time, run.open_since), now)
    tokens = f"{run.input_tokens:,} in, {run.output_tokens:,} out" if run.input_tokens or run.output_tokens else ""
    return RunRow(
        id=str(run.pk),
        href=href,
        status=_escape(run.status),
        reason=_escape(str(place_wait) if place_wait is not None else reason_label(run.status_reason)),
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
        source=_escape(source_name(run.source, run.code_version, is_packaged=run.is_packaged)),
        is_continuation=run.resumed_from_id is not None,
        is_child=run.parent_run_id is not None,
        children=_escape(str(run.child_count or "")),
        tree=f"{href}/tree" if run.child_count else "",
        has_ended=run.state.terminal,
    )


def _step_limit(run: ListedRun) -> str:
    """Return the number of the last step that is allowed; empty for an external run."""
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


def markup_of(
    rows: Iterable[RunRow], *, columns: tuple[str, ...] = DEFAULT, boxes: bool, swap: bool = False
) -> list[SafeString]:
    """Return the rows as HTML: with checkboxes if `boxes`; if `swap`, for replacing the rows of an open page."""
    filled = ({name: value for name, value in row.items() if value} for row in rows)
    return [format_html(_format_string(tuple(values), columns, boxes, swap), **values) for values in filled]


@lru_cache(maxsize=512)
def _format_string(fields: tuple[str, ...], columns: tuple[str, ...], boxes: bool, swap: bool) -> str:
    """Return the format string for the HTML of rows in which exactly these fields have a value."""
    placeholders = {name: f"{{{name}}}" for name in fields}
    context = {"row": placeholders, "columns": columns, "boxes": boxes, "swap": swap}
    return render_to_string("runs/runs/_list_row.html", context)
