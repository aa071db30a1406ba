"""The waterfall of a run: bars on a time axis show when its steps, calls and waits ran. Idle times are shortened."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.base import database_clock
from agentops.base.http.methods import require_safe
from runs.pages.run.any_run import tab_context
from runs.pages.run.timeline_page import seq_of
from runs.queries.run_spans import Span, SpanKind, spans_of
from runs.statuses import RunStatus, ToolStatus
from timeline.display import clean, clip
from timeline.reasons import reason_label

#: Above this number of bars, each row shows one or several whole steps.
MAX_BARS = 2000
#: Maximum rows of whole steps.
MAX_GROUPS = 400
#: The length of a shortened idle time, as a share of the active time, and its minimum in seconds.
IDLE_SHARE, IDLE_S = 0.05, 1.0
#: Bars of the same kind in one row that are closer than this share of the axis are merged.
GAP_SHARE = 0.002
#: Maximum bytes of the name of a tool or a model.
NAME_BYTES = 120
KIND_LABELS = {SpanKind.QUEUE: "queue", SpanKind.MODEL: "model", SpanKind.TOOL: "tool", SpanKind.WAIT: "wait"}
_WORK = (SpanKind.MODEL, SpanKind.TOOL)


@dataclass(frozen=True)
class Bar:
    """A bar of a row. `x` and `width` are percentages of the axis."""

    kind: str
    x: float
    width: float


@dataclass(frozen=True)
class WaterfallRow:
    """A span, or the spans of one or several steps together."""

    kind: str
    #: The steps, such as "3" or "3–12"; empty without a step.
    steps: str
    name: str
    #: The sequence number of the first event.
    seq: int
    #: Milliseconds from the start of the axis to the first start.
    offset_ms: float
    #: Milliseconds from the first start to the last end.
    duration_ms: float
    bars: list[Bar]
    outcome: str = ""
    is_failed: bool = False
    is_open: bool = False
    #: Number of merged spans.
    count: int = 1


@dataclass(frozen=True)
class Waterfall:
    """The waterfall for its template."""

    rows: list[WaterfallRow]
    begin: datetime | None = None
    #: Length of the axis in seconds, with the idle times unshortened.
    total_s: float = 0.0
    #: All idle times, and what was removed from them, in seconds.
    idle_s: float = 0.0
    hidden_s: float = 0.0
    #: Whether each row is one or several whole steps.
    is_grouped: bool = False
    #: Number of spans.
    bar_count: int = 0


class Axis:
    """Converts times to percentages. Times in which neither a model nor a tool ran are shortened."""

    def __init__(self, begin: datetime, end: datetime, active: Sequence[tuple[datetime, datetime]]) -> None:
        """`active` are the times in which a model or a tool ran: disjoint, in order."""
        self.begin = begin
        active_s = sum(database_clock.seconds_between(since, until) for since, until in active)
        self.longest_idle_s = max(active_s * IDLE_SHARE, IDLE_S)
        self.idle_s = self.hidden_s = 0.0
        #: Times at which the scale changes: in seconds since the start, and in seconds of the shortened axis.
        self._times, self._drawn = [0.0], [0.0]
        for since, until in [*active, (end, end)]:
            self._add_idle(self._seconds(since))
            self._add(self._seconds(until), self._seconds(until) - self._times[-1])

    def position(self, at: datetime) -> float:
        """Return the position of a time as a percentage of the axis."""
        seconds = min(max(self._seconds(at), 0.0), self._times[-1])
        index = min(bisect_right(self._times, seconds), len(self._times) - 1)
        before, after = self._times[index - 1], self._times[index]
        share = (seconds - before) / (after - before) if after > before else 1.0
        drawn = self._drawn[index - 1] + share * (self._drawn[index] - self._drawn[index - 1])
        return 100 * drawn / self._drawn[-1] if self._drawn[-1] else 0.0

    def _add_idle(self, until: float) -> None:
        """Add the idle time up to `until`, shortened."""
        idle = max(until - self._times[-1], 0.0)
        drawn = min(idle, self.longest_idle_s)
        self.idle_s += idle
        self.hidden_s += idle - drawn
        self._add(until, drawn)

    def _add(self, until: float, drawn: float) -> None:
        if until > self._times[-1]:
            self._times.append(until)
            self._drawn.append(self._drawn[-1] + drawn)

    def _seconds(self, at: datetime) -> float:
        return (at - self.begin).total_seconds()


def waterfall_of(spans: Sequence[Span], now: datetime) -> Waterfall:
    """Return the waterfall of these spans, in order. Open spans end at `now`."""
    if not spans:
        return Waterfall([])
    begin = min(span.begin for span in spans)
    end = max(_end(span, now) for span in spans)
    axis = Axis(begin, end, _union((span.begin, _end(span, now)) for span in spans if span.kind in _WORK))
    is_grouped = len(spans) > MAX_BARS
    rows = _grouped(spans, axis, now) if is_grouped else [_row([span], axis, now) for span in spans]
    total_s = database_clock.seconds_between(begin, end)
    return Waterfall(rows, begin, total_s, axis.idle_s, axis.hidden_s, is_grouped, len(spans))


def _grouped(spans: Sequence[Span], axis: Axis, now: datetime) -> list[WaterfallRow]:
    """Return a row for each step, or for several successive steps, if there are more than MAX_GROUPS."""
    steps = sorted({span.step for span in spans if span.step is not None})
    number_of = {step: number for number, step in enumerate(steps)}
    size = max(-(-len(steps) // MAX_GROUPS), 1)  # steps of a row, rounded up
    in_steps = sorted((s for s in spans if s.step is not None), key=lambda s: (number_of[s.step or 0], s.begin))
    others = [span for span in spans if span.step is None]
    groups = [list(group) for _, group in groupby(in_steps, key=lambda span: number_of[span.step or 0] // size)]
    # Spans outside of steps, such as waits, keep separate rows; only the newest are shown.
    groups += [[span] for span in others[-MAX_GROUPS:]]
    rows = [_row(group, axis, now) for group in groups]
    return sorted(rows, key=lambda row: row.offset_ms)


def _row(spans: Sequence[Span], axis: Axis, now: datetime) -> WaterfallRow:
    first, begin = spans[0], min(span.begin for span in spans)
    end = max(_end(span, now) for span in spans)
    steps = [span.step for span in spans if span.step is not None]
    low, high = (min(steps), max(steps)) if steps else (None, None)
    is_alone = len(spans) == 1
    return WaterfallRow(
        kind=KIND_LABELS[first.kind] if is_alone else "steps",
        steps="" if low is None else str(low) if low == high else f"{low}–{high}",
        name=_name(first) if is_alone else _summary(spans),
        seq=first.seq,
        offset_ms=database_clock.milliseconds_between(axis.begin, begin),
        duration_ms=database_clock.milliseconds_between(begin, end),
        bars=_bars(spans, axis, now),
        outcome=_outcome(first) if is_alone else "",
        is_failed=any(span.is_failed for span in spans),
        is_open=any(span.end is None for span in spans),
        count=len(spans),
    )


def _bars(spans: Sequence[Span], axis: Axis, now: datetime) -> list[Bar]:
    """Return the bars of a row, by kind. A bar has a minimum width, and close bars of the same kind are merged."""
    bars = []
    gap = 0.0 if len(spans) == 1 else GAP_SHARE * 100
    for kind in SpanKind:
        pieces: list[list[float]] = []
        for since, until in _union((s.begin, _end(s, now)) for s in spans if s.kind is kind):
            left, right = axis.position(since), axis.position(until)
            if pieces and left - pieces[-1][1] <= gap:
                pieces[-1][1] = right
            else:
                pieces.append([left, right])
        # Numbers in SVG have a decimal point in every language of the site.
        bars += [Bar(KIND_LABELS[kind], round(left, 3), round(max(right - left, 0.15), 3)) for left, right in pieces]
    return bars


def _name(span: Span) -> str:
    """Return the name of a call, or the reason of a wait."""
    name = clip(span.name, NAME_BYTES).text
    if span.kind in _WORK:
        return f"{name or KIND_LABELS[span.kind]}{f' (attempt {span.attempt + 1})' if span.attempt else ''}"
    return "Before the next attempt" if span.name == "retry" else clean(reason_label(span.name)).capitalize()


def _outcome(span: Span) -> str:
    """Return how a span ended; empty for a tool call with an error: the phrase of this code is about pauses."""
    return "" if span.outcome == ToolStatus.ERROR else clean(reason_label(span.outcome))


def _summary(spans: Sequence[Span]) -> str:
    """Return the number of calls, such as "2 model calls, 1 tool call"."""
    counts = [(kind, sum(span.kind is kind for span in spans)) for kind in _WORK]
    return ", ".join(f"{count} {KIND_LABELS[kind]} call{'' if count == 1 else 's'}" for kind, count in counts if count)


def _end(span: Span, now: datetime) -> datetime:
    """Return the end of a span; `now` for an open one. Never before its start, even if clocks differ."""
    return max(span.end or now, span.begin)


def _union(spans: Iterable[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """Return the union of time spans as disjoint ones, in order."""
    merged: list[tuple[datetime, datetime]] = []
    for since, until in sorted(spans):
        if merged and since <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], until))
        else:
            merged.append((since, until))
    return merged


@require_safe
def waterfall(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Show the waterfall, or the part of it after event `after`."""
    context = tab_context(request, run_id, "waterfall")
    after = seq_of(request, "after") or 0
    part = spans_of(run_id, min(after, context["run"].log.last_seq))
    state = context["run"].state
    # Open spans grow only while the run is active and the part reaches the end of the log.
    grows = state is not RunStatus.PAUSED and not state.terminal and part.more is None
    end = None if grows else part.last_ts
    context |= {"waterfall": waterfall_of(part.spans, end or database_clock.now()), "more": part.more, "after": after}
    return render(request, "runs/tabs/waterfall.html", context)
