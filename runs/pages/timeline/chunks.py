"""The streamed pieces that a timeline still needs: those of an answer or an output that nobody stored whole.

A long answer has hundreds of pieces, so they are read only where they are all there is: while it streams, where it
was abandoned, and where an external runner sent nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Q

from runs.pages.timeline.event_texts import MOVERS
from timeline import log
from timeline.event_rows import CHUNKS, payload_of
from timeline.events import EventType
from timeline.models import Event, Source

#: The newest pieces of a window; what an open answer shows is cut to its end anyway.
MOST = 2000
Key = tuple[str, object]

_OPENERS = frozenset({EventType.LLM_TURN_START, EventType.TOOL_START})
#: A closer that has one of these tells the whole itself.
_WHOLE = ("text", "thinking", "content", "output", "preview", "error")


@dataclass(frozen=True, slots=True)
class EventSpan:
    """The events between two, among which pieces are looked for."""

    after: int
    before: int


def without_chunks() -> Q:
    """Every event but pieces; a late output is no piece, for there is no card that it could still go into.

    Nor the whole texts of our own answers, which their rows hold."""
    whole = Q(type__in=[EventType.LLM_TEXT, EventType.LLM_THINKING], source=Source.WORKER)
    return ~Q(type__in=CHUNKS) & ~whole | Q(type=EventType.TOOL_OUTPUT, payload__late=True)


def missing(events: Sequence[Event], *, upto: int | None = None) -> list[EventSpan]:
    """Where pieces have to be read to show what `events`, which hold none, tell of. With `upto`, the newest event
    seen, also for what has not ended by then."""
    open_at: dict[Key, int] = {}
    spans: list[EventSpan] = []
    for event in events:
        key = closes(event)
        if event.type in _OPENERS:
            open_at[_key(event)] = event.seq
        elif key in open_at and key is not None:
            told = _tells_all(event)
            if event.type == EventType.MESSAGE_ADDED and not told:
                continue  # its turn's end may
            since = open_at.pop(key)
            if not told:
                spans.append(EventSpan(since, event.seq))
    return spans if upto is None else spans + [EventSpan(since, upto + 1) for since in open_at.values()]


def still_open(events: Sequence[Event]) -> set[Key]:
    """The keys of what was opened in `events` and not completed."""
    keys: set[Key] = set()
    for event in events:
        if event.type in _OPENERS:
            keys.add(_key(event))
        elif (key := closes(event)) is not None:
            keys.discard(key)
    return keys


def unopened(batch: Sequence[Event]) -> list[Event]:
    """The events of a batch that complete or change a card which nothing before them in the batch opens."""
    opened: set[Key] = set()
    found: list[Event] = []
    for event in batch:
        if event.type in _OPENERS:
            opened.add(_key(event))
        elif (key := closes(event) or _moves(event)) is not None and key not in opened:
            found.append(event)
    return found


def closes(event: Event) -> Key | None:
    """What an event completes; None for one that completes nothing."""
    if event.type in (EventType.LLM_TURN_END, EventType.LLM_TURN_ABANDONED, EventType.TOOL_END):
        return _key(event)
    answer = event.type == EventType.MESSAGE_ADDED and payload_of(event).get("role") == "assistant"
    return _key(event) if answer else None


def _moves(event: Event) -> Key | None:
    """What an event changes without completing it: the call that a run waits for, or that was decided about."""
    return ("call", event.ref_id) if event.type in MOVERS and event.ref_id is not None else None


def read(log_id: UUID, spans: Sequence[EventSpan]) -> list[Event]:
    """The pieces in the spans, in order; one query, or none where nothing is missing."""
    within = Q()
    for span in spans:
        if span.before - span.after > 1:
            within |= Q(seq__gt=span.after, seq__lt=span.before)
    if not within:
        return []
    return list(log.events_of(log_id).filter(within, type__in=CHUNKS).order_by("-seq")[:MOST])[::-1]


def merged(events: Sequence[Event], pieces: Sequence[Event]) -> list[Event]:
    return sorted([*events, *pieces], key=lambda event: event.seq) if pieces else list(events)


def _key(event: Event) -> Key:
    """What an opener and its closers have in common."""
    if event.type in (EventType.TOOL_START, EventType.TOOL_END):
        return "call", event.ref_id or str(payload_of(event).get("call_id"))
    return "turn", event.step


def _tells_all(event: Event) -> bool:
    if event.type == EventType.LLM_TURN_ABANDONED:
        return False
    return event.ref_id is not None or any(payload_of(event).get(name) for name in _WHOLE)
