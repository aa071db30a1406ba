"""Select the streamed chunks that a timeline needs: chunks of texts that are not stored in full.

A long response has hundreds of chunks. They are read only while it streams, if it was discarded, or if an external
runner sent nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Q

from runs.pages.timeline.event_texts import CALL_UPDATES
from timeline import log
from timeline.events import CHUNK_TYPES, EventType, kind_of, types_that
from timeline.events.tool import TOOL
from timeline.models import Event, Source
from timeline.shown_events import payload_of

#: Maximum chunks that are read: the newest ones.
MAX_CHUNKS = 2000
#: Identifies a turn or a call: ("turn", step) or ("call", ID).
Key = tuple[str, object]
#: Types of events that start a turn or a call.
OPENERS = sorted(types_that(lambda kind: kind.opens_card))
#: Fields of a payload that may have the full text.
_FULL_TEXT_FIELDS = ("text", "thinking", "content", "output", "preview", "error")


@dataclass(frozen=True, slots=True)
class EventSpan:
    """A range of sequence numbers that may contain chunks, without its ends."""

    after: int
    before: int


def without_chunks() -> Q:
    """Return the condition for all events except chunks.

    Includes late tool output, because no card exists to append it to. Excludes the full texts of the engine's own
    responses, because their rows contain them.
    """
    full_text = Q(type__in=[EventType.LLM_TEXT, EventType.LLM_THINKING], source=Source.WORKER)
    return ~Q(type__in=CHUNK_TYPES) & ~full_text | Q(type=EventType.TOOL_OUTPUT, payload__late=True)


def missing(events: Sequence[Event], *, upto: int | None = None) -> list[EventSpan]:
    """Return the ranges whose chunks are needed to display `events`, which contain no chunks.

    With `upto`, the newest event of the window, also return the ranges of turns and calls that are still open there.
    """
    open_at: dict[Key, int] = {}
    spans: list[EventSpan] = []
    for event in events:
        key = closes(event)
        if event.type in OPENERS:
            open_at[_key(event)] = event.seq
        elif key in open_at and key is not None:
            has_text = _has_full_text(event)
            if event.type == EventType.MESSAGE_ADDED and not has_text:
                continue  # the event that ends the turn may have the full text
            since = open_at.pop(key)
            if not has_text:
                spans.append(EventSpan(since, event.seq))
    return spans if upto is None else spans + [EventSpan(since, upto + 1) for since in open_at.values()]


def open_keys(events: Sequence[Event]) -> set[Key]:
    """Return the keys of turns and calls that start but do not end in `events`."""
    keys: set[Key] = set()
    for event in events:
        if event.type in OPENERS:
            keys.add(_key(event))
        elif (key := closes(event)) is not None:
            keys.discard(key)
    return keys


def closers(batch: Sequence[Event]) -> list[Event]:
    """Return the events that end or update a turn or call that starts before the batch."""
    opened: set[Key] = set()
    events: list[Event] = []
    for event in batch:
        if event.type in OPENERS:
            opened.add(_key(event))
        elif (key := closes(event) or _updated_call(event)) is not None and key not in opened:
            events.append(event)
    return events


def closes(event: Event) -> Key | None:
    """Return the key of the turn or call that the event ends, or None."""
    is_answer = event.type == EventType.MESSAGE_ADDED and payload_of(event).get("role") == "assistant"
    return _key(event) if is_answer or kind_of(event.type).ends_card else None


def _updated_call(event: Event) -> Key | None:
    """Return the key of the call whose status the event changes without ending it, or None."""
    return ("call", event.ref_id) if event.type in CALL_UPDATES and event.ref_id is not None else None


def read(log_id: UUID, spans: Sequence[EventSpan]) -> list[Event]:
    """Return the chunks in the ranges, in order. At most one query."""
    within = Q()
    for span in spans:
        if span.before - span.after > 1:
            within |= Q(seq__gt=span.after, seq__lt=span.before)
    if not within:
        return []
    return list(log.events_of(log_id).filter(within, type__in=CHUNK_TYPES).order_by("-seq")[:MAX_CHUNKS])[::-1]


def merge(events: Sequence[Event], chunks: Sequence[Event]) -> list[Event]:
    """Return events and chunks in the order of the log."""
    return sorted([*events, *chunks], key=lambda event: event.seq) if chunks else list(events)


def _key(event: Event) -> Key:
    """Return the key that the start and the end of a turn or call share."""
    if kind_of(event.type).family is TOOL:
        return "call", event.ref_id or str(payload_of(event).get("call_id"))
    return "turn", event.step


def _has_full_text(event: Event) -> bool:
    """Return whether the event, or the row that it refers to, has the full text, so that its chunks are not needed."""
    if event.type == EventType.LLM_TURN_ABANDONED:
        return False
    return event.ref_id is not None or any(payload_of(event).get(name) for name in _FULL_TEXT_FIELDS)
