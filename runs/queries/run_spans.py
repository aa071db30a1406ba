"""The model calls, tool calls and waits of a run as spans of time, from its events. Each attempt is a separate span."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models.fields.json import KT

from timeline import log
from timeline.events import TERMINAL_TYPES, EventType
from timeline.reading import shift
from timeline.shown_events import FAILED_STATUSES

#: Maximum events that are read at a time.
MAX_EVENTS = 20_000
#: Event that begins a wait → the name of the wait without a reason.
_WAITS = {EventType.RUN_WAITING: "", EventType.RUN_PAUSED: "paused"}
_ENDS = sorted(TERMINAL_TYPES)
_STARTS = (EventType.RUN_STARTED, EventType.RUN_RECOVERED)
_TYPES = (
    EventType.RUN_CREATED,
    EventType.RUN_PHASE,
    *_STARTS,
    *_WAITS,
    *_ENDS,
    EventType.RETRY_SCHEDULED,
    EventType.LLM_TURN_START,
    EventType.LLM_TURN_END,
    EventType.LLM_TURN_ABANDONED,
    EventType.TOOL_START,
    EventType.TOOL_END,
)


class SpanKind(StrEnum):
    """The kind of a span."""

    QUEUE = "queue"
    MODEL = "model"
    TOOL = "tool"
    WAIT = "wait"


@dataclass(frozen=True)
class Span:
    """A part of a run. `end` is None if it had not ended at the last read event."""

    kind: SpanKind
    #: The model, the tool, or the reason of a wait as a code.
    name: str
    #: The seq of its first event.
    seq: int
    step: int | None
    begin: datetime
    end: datetime | None = None
    attempt: int = 0
    is_failed: bool = False
    #: Why it failed, as a code; empty otherwise.
    outcome: str = ""


class SpanEvent(NamedTuple):
    """The columns of an event that are needed for spans: five of its row, and then texts of its payload."""

    seq: int
    type: str
    ts: datetime
    step: int | None
    ref_id: UUID | None
    call_id: str | None
    tool_name: str | None
    attempt: str | None
    status: str | None
    reason: str | None
    model: str | None
    duration_ms: str | None
    delay_ms: str | None
    error: str | None


@dataclass(frozen=True)
class RunSpans:
    """The spans of a part of a run, in the order of their beginnings."""

    spans: list[Span]
    last_ts: datetime | None = None
    #: The seq of the last read event if more events follow; otherwise None.
    more: int | None = None


def spans_of(run_id: UUID, after: int = 0, limit: int = MAX_EVENTS) -> RunSpans:
    """Return the spans of the next `limit` events after event `after`. One query."""
    events = log.events_of(run_id).filter(seq__gt=after, type__in=_TYPES, late=False)
    columns, fields = SpanEvent._fields[:5], SpanEvent._fields[5:]
    values = events.values_list(*columns, *(KT(f"payload__{name}") for name in fields))
    # SQLite returns the numbers of a payload as numbers.
    rows = [SpanEvent(*row[:5], *map(_as_text, row[5:])) for row in values[: limit + 1]]
    taken = rows[:limit]
    last_ts = max((row.ts for row in taken), default=None)
    return RunSpans(fold_spans(taken), last_ts, taken[-1].seq if len(rows) > limit else None)


@dataclass
class _SpanFold:
    """The spans of the events so far."""

    #: The open spans, by a key that is the same for the events that begin and end a span.
    spans: dict[Any, Span] = field(default_factory=dict)
    done: list[Span] = field(default_factory=list)

    def begin(self, key: Any, span: Span) -> None:
        """Begin a span. An open span with the same key ends here, because its own end is missing."""
        self.end(key, span.begin, failure="lost")
        self.spans[key] = span

    def end(self, key: Any, at: datetime, *, failure: str = "") -> bool:
        """End a span, with the outcome `failure` if it failed. Return whether it was open."""
        span = self.spans.pop(key, None)
        if span is not None:
            self.done.append(replace(span, end=max(at, span.begin), is_failed=bool(failure), outcome=failure))
        return span is not None

    def end_all(self, at: datetime, *, failure: str = "") -> None:
        for key in list(self.spans):
            self.end(key, at, failure=failure)

    def add(self, span: Span, *, failure: str = "") -> None:
        """Add a span of which only the end is known."""
        self.done.append(replace(span, is_failed=bool(failure), outcome=failure))


def fold_spans(events: Iterable[SpanEvent]) -> list[Span]:
    """Return the spans of these events, in the order of their beginnings."""
    spans = _SpanFold()
    for event in events:
        _add_event(spans, event)
    return sorted([*spans.done, *spans.spans.values()], key=lambda span: (span.begin, span.seq))


def _add_event(spans: _SpanFold, event: SpanEvent) -> None:
    if event.type == EventType.RETRY_SCHEDULED:
        _add_retry(spans, event)
    elif event.type.startswith("llm."):
        _add_model_event(spans, event)
    elif event.type.startswith("tool."):
        _add_tool_event(spans, event)
    else:
        _add_status_event(spans, event)


def _add_model_event(spans: _SpanFold, event: SpanEvent) -> None:
    if event.type == EventType.LLM_TURN_START:
        spans.begin("model", _span(event, SpanKind.MODEL, event.model))
        return
    failure = (event.reason or "abandoned") if event.type == EventType.LLM_TURN_ABANDONED else ""
    if not spans.end("model", event.ts, failure=failure):
        # An external runner may report only the end of a call.
        spans.add(_reported(event, SpanKind.MODEL, event.model), failure=failure)


def _add_tool_event(spans: _SpanFold, event: SpanEvent) -> None:
    key = _call_key(event)
    if event.type == EventType.TOOL_START:
        spans.begin(key, _span(event, SpanKind.TOOL, event.tool_name))
        return
    status = event.status or ""
    failure = (status or "error") if status in FAILED_STATUSES or event.error else ""
    if not spans.end(key, event.ts, failure=failure) and status != "denied":
        spans.add(_reported(event, SpanKind.TOOL, event.tool_name), failure=failure)


def _add_retry(spans: _SpanFold, event: SpanEvent) -> None:
    if event.call_id:
        spans.end(_call_key(event), event.ts, failure="failed attempt")
    end = shift(event.ts, _ms(event.delay_ms))
    spans.done.append(Span(SpanKind.WAIT, "retry", event.seq, event.step, event.ts, end))


def _add_status_event(spans: _SpanFold, event: SpanEvent) -> None:
    is_running = event.type in _STARTS or (event.type == EventType.RUN_PHASE and event.status == "running")
    if event.type == EventType.RUN_RECOVERED:
        spans.end_all(event.ts, failure="lost")
    elif event.type in _ENDS:
        spans.end_all(event.ts)
    elif is_running:
        spans.end("wait", event.ts)
    elif event.type in _WAITS:
        spans.end("wait", event.ts)
        spans.begin("wait", _span(event, SpanKind.WAIT, event.reason or _WAITS[EventType(event.type)]))
    elif event.type == EventType.RUN_CREATED or event.status == "queued":
        spans.end("wait", event.ts)
        spans.begin("wait", _span(event, SpanKind.QUEUE, "queued"))


def _as_text(value: Any) -> str | None:
    return None if value is None else str(value)


def _call_key(event: SpanEvent) -> Any:
    return event.ref_id or (event.step, event.call_id)


def _span(event: SpanEvent, kind: SpanKind, name: str | None) -> Span:
    attempt = event.attempt or ""
    return Span(kind, name or "", event.seq, event.step, event.ts, attempt=int(attempt) if attempt.isdigit() else 0)


def _reported(event: SpanEvent, kind: SpanKind, name: str | None) -> Span:
    """Return a span that ends with the event, which reports its duration."""
    return replace(_span(event, kind, name), begin=shift(event.ts, -_ms(event.duration_ms)), end=event.ts)


_YEAR_MS = 365 * 86_400_000


def _ms(text: str | None) -> timedelta:
    """Return a duration from milliseconds in a payload, at most a year: external runners may send any text."""
    try:
        return timedelta(milliseconds=min(max(float(text or 0), 0), _YEAR_MS))
    except ValueError:
        return timedelta(0)
