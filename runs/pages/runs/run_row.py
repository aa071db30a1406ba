"""A run as a row of the list: what is shown of it, in words."""

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
UNTITLED = "(without a title)"
_SOME_RUN = UUID(int=0)


class Moment(TypedDict):
    """A time as ISO 8601 has it and how long ago it was, as static/js/time.js says it too."""

    at: str
    ago: str


class RunRow(TypedDict):
    """Texts, ready to be shown: what a template would make of a value, it would make fifty times on a page.

    A dict, since that is where a template looks first; most of its texts are escaped already."""

    id: str
    href: str
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
    #: Nothing of it changes any more.
    over: bool


def rows_of(runs: Iterable[AgentRun], now: datetime) -> list[RunRow]:
    """Of runs as RunQuerySet.for_list and `with_times` load them."""
    # Resolved once: all of them differ in the id alone.
    page = escape(reverse("runs:detail", args=[_SOME_RUN]))
    return [_row(run, page.replace(str(_SOME_RUN), str(run.pk)), now) for run in runs]


def _row(run: AgentRun, href: str, now: datetime) -> RunRow:
    times = times_of(run, now)
    tokens = f"{run.input_tokens:,} in, {run.output_tokens:,} out" if run.input_tokens or run.output_tokens else ""
    return RunRow(
        id=escape(run.pk),
        href=href,
        status=_word(run.status),
        reason=_word(run.status_reason.replace("_", " ")),
        agent=_name(getattr(run, "agent_name", None) or ""),
        title=escape(_line(run.title) or UNTITLED),
        summary=escape(_line(getattr(run, "summary_start", ""))),
        started=_moment(run.started_at, now),
        last_event=_moment(run.log.last_event_at, now),
        duration=_word(lasting(times.worked_s) if times else NOTHING),
        counts_from=times.counts_from.isoformat() if times and run.state is RunStatus.RUNNING else "",
        steps=_word(str(run.step_count)),
        step_limit=_word(str(run.step_limit(settings.AGENTOPS_MAX_TOTAL_STEPS))),
        tokens_in=_word(rounded(run.input_tokens)),
        tokens_out=_word(rounded(run.output_tokens)),
        tokens=tokens,
        cost=_word(dollars(run.cost_usd)),
        cost_source=_word(run.cost_source),
        source=_word(run.source),
        is_continuation=run.resumed_from_id is not None,
        is_child=run.parent_run_id is not None,
        over=run.state.terminal,
    )


@lru_cache(maxsize=4096)
def _word(text: str) -> str:
    """A word or a number that many rows have, escaped once for all of them."""
    return escape(text)


@lru_cache(maxsize=1024)
def _name(agent: str) -> str:
    return escape(_line(agent) or NOTHING)


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
    return Moment(at=at.isoformat(), ago=_word(ago((now - at).total_seconds()))) if at else None


def _line(text: object) -> str:
    return printable(clean(str(text or ""))).strip()
