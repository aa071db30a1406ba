"""The part of a timeline on a page: its end, the rows before an event, or the rows around one.

At most eight queries, independent of the length of the log: the bounds of the window, its events, later events that
complete them, and the rows and chunks that they refer to. The bounds are the first and the last event of a number of
rows, and of whole steps if possible. Queries on the log use the index on (log, seq).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Case, F, JSONField, Q, QuerySet, When

from runs.pages.timeline import chunks
from runs.pages.timeline.cards import Card, Item, ToolCard
from runs.pages.timeline.event_texts import CALL_UPDATES, texts_of
from runs.pages.timeline.fold import Fold
from timeline import log
from timeline.events import EventType, Show, types_that
from timeline.models import Event
from timeline.shown_events import FAILURES

#: Rows of the first page and of each page of older rows.
ROWS = 100
#: Rows on either side of a requested event.
AROUND = ROWS // 2
#: Rows of a replay.
REPLAY_ROWS = 30
#: Types of events that may complete a card.
_CLOSERS = [EventType.MESSAGE_ADDED, *sorted(types_that(lambda kind: kind.ends_card))]


@dataclass(frozen=True)
class Window:
    """A part of a timeline."""

    items: Sequence[Item] = field(default_factory=list)
    #: The seq of the newest event; a stream continues after it.
    last_seq: int = 0
    #: The event that older rows are before; None without older rows.
    older: int | None = None
    #: Whether the window includes the newest event.
    at_end: bool = True

    @property
    def newer(self) -> int | None:
        """Return the event that newer rows are after; None without newer rows."""
        return None if self.at_end else self.last_seq


def newest(log_id: UUID, last_seq: int, show: Show = Show.ALL) -> Window:
    """Return the last rows up to event `last_seq`."""
    begin, older = begin_of(log_id, last_seq, show, ROWS)
    items, _ = _fold(log_id, (begin, last_seq), show)
    return Window(_filter(items, show), last_seq, older)


def before(log_id: UUID, seq: int, last_seq: int, show: Show = Show.ALL, *, joins: bool = False) -> Window:
    """Return the rows before event `seq`.

    With `joins`, leave out the cards that events from `seq` on complete: the page already displays them.
    """
    end = min(seq - 1, last_seq)
    begin, older = begin_of(log_id, end, show, ROWS)
    items, crossing = _fold(log_id, (begin, end), show, ahead=True)
    if joins:
        items = [item for item in items if item.id not in crossing]
    return Window(_filter(items, show), end, older, at_end=end == last_seq)


def after(log_id: UUID, seq: int, last_seq: int, show: Show = Show.ALL) -> Window:
    """Return the rows after event `seq`, and the cards that are open at `seq` and change later."""
    end = end_of(log_id, seq, last_seq, show, ROWS)
    items, _ = _fold(log_id, (seq + 1, end), show, ahead=end < last_seq)
    return Window(_filter(items, show), end, older=seq + 1 if seq else None, at_end=end == last_seq)


def around(log_id: UUID, seq: int, last_seq: int, show: Show = Show.ALL, *, step: int | None = None) -> Window:
    """Return the rows around event `seq`, whose row has `is_target` set.

    With `step`, whose first event is `seq`, center on the first row of the step that the filter includes.
    """
    begin, older = begin_of(log_id, seq, show, AROUND)
    end = end_of(log_id, seq, last_seq, show, AROUND)
    items, _ = _fold(log_id, (begin, end), show, ahead=end < last_seq, target=seq if step is None else None)
    items = _filter(items, show)
    if step is not None and (first := next((item for item in items if item.step == step), None)):
        first.is_target = True
    return Window(items, end, older, at_end=end == last_seq)


def up_to(log_id: UUID, seq: int) -> Window:
    """Return the last rows up to event `seq` in their state at that event, for a replay.

    Returns only a few rows, because a player requests several frames a second.
    """
    begin, older = begin_of(log_id, seq, Show.ALL, REPLAY_ROWS)
    items, _ = _fold(log_id, (begin, seq), Show.ALL)
    moment = log.events_of(log_id).filter(seq=seq).values_list("ts", flat=True).first()
    for item in items:
        if isinstance(item, Card):
            item.until = moment
        if isinstance(item, ToolCard):
            # The card would link to a form that changes the run.
            item.needs_outcome = False
    return Window(items, seq, older)


def start_of_step(log_id: UUID, step: int) -> int | None:
    """Return the first event of a step, or None. Slow, because it reads the log up to this event."""
    return log.events_of(log_id).filter(step=step).values_list("seq", flat=True).first()


# --- The rows of a window ---------------------------------------------------------------------------------------------


def _fold(
    log_id: UUID, span: tuple[int, int], show: Show, *, ahead: bool = False, target: int | None = None
) -> tuple[list[Item], set[str]]:
    """Return the items of the events in `span`, and the IDs of those that later events complete.

    Later events are read only with `ahead`. `target` is the event whose item gets `is_target`.
    """
    begin, end = span
    events = list(events_shown(log_id, show).filter(seq__gte=begin, seq__lte=end).order_by("seq"))
    pieces = chunks.read(log_id, chunks.missing(events, upto=end))
    closers = _closers_after(log_id, end, chunks.open_keys(events)) if ahead else []
    fold = Fold(texts_of(log_id, [*events, *closers]))
    for event in chunks.merge(events, pieces):
        fold.take(event)
    crossing = {change.item.id for event in closers for change in fold.take(event) if change.item is not None}
    if target is not None:
        _set_target(fold, target)
    return fold.items, crossing


def _closers_after(log_id: UUID, end: int, open_keys: set[chunks.Key]) -> list[Event]:
    """Return the events after the window that complete cards of it."""
    if not open_keys:
        return []
    following = log.events_of(log_id).filter(seq__gt=end, type__in=_CLOSERS)[: 2 * ROWS]
    return [event for event in following if chunks.closes(event) in open_keys]


def _set_target(fold: Fold, seq: int) -> None:
    """Set `is_target` of the item that displays the event, or of the last one before it."""
    item = fold.owners.get(seq) or next((item for item in reversed(fold.items) if item.seq <= seq), None)
    if item is not None:
        item.is_target = True


def _filter(items: Sequence[Item], show: Show) -> list[Item]:
    return [item for item in items if show in item.shows]


#: Maximum events that are searched for the bound of a window, and beyond it for the bound of its step.
SCAN, EXTRA = 1200, 200


class WindowEvent(NamedTuple):
    """The fields of an event that determine where a window starts and ends."""

    seq: int
    type: str
    step: int | None
    role: Any


_FILTERS = {
    Show.ALL: Q(),
    Show.MESSAGES: Q(type__in=sorted(types_that(lambda kind: kind.show is Show.MESSAGES))),
    Show.TOOLS: Q(type__in=sorted(types_that(lambda kind: kind.show is Show.TOOLS)))
    # Changes of the status of a call: its card displays them.
    | Q(type__in=CALL_UPDATES, ref_id__isnull=False),
    Show.ERRORS: FAILURES,
}


def events_shown(log_id: UUID, show: Show) -> QuerySet[Event]:
    """Return the events that pass a filter, without chunks."""
    return Event.objects.filter(chunks.without_chunks(), _FILTERS[show], log=log_id)


def begin_of(log_id: UUID, end: int, show: Show, rows: int) -> tuple[int, int | None]:
    """Return the first event of a window of about `rows` rows up to `end`, and the event that older rows are before.

    The second is None without older rows. A window starts with a step if possible, so that it does not split cards.
    """
    events = _read(events_shown(log_id, show).filter(seq__lte=end).order_by("-seq"))
    index, row_count = len(events) - 1, 0
    counted: set[int | None] = set()
    for position, event in enumerate(events[:SCAN]):
        row_count += _rows_before(event, counted)
        if row_count >= rows:
            index = _start_of_step(events, position)
            break
    if index >= len(events) - 1 and len(events) < SCAN + EXTRA:
        return 1, None
    return events[index].seq, events[index].seq


def end_of(log_id: UUID, seq: int, last_seq: int, show: Show, rows: int) -> int:
    """Return the last event of a window of about `rows` rows after `seq`: `last_seq` if that is near.

    A window ends before a step if possible, so that the next window starts with it.
    """
    events = _read(events_shown(log_id, show).filter(seq__gt=seq, seq__lte=last_seq).order_by("seq"))
    row_count = 0
    counted: set[int | None] = set()
    for position, event in enumerate(events[:SCAN]):
        row_count += _rows_after(event, counted)
        if row_count < rows:
            continue
        for following in events[position + 1 : position + 1 + EXTRA]:
            if following.type == EventType.LLM_TURN_START:
                return following.seq - 1
        if position + 1 + EXTRA >= len(events) and len(events) < SCAN + EXTRA:
            return last_seq
        return event.seq
    return last_seq if len(events) < SCAN + EXTRA else events[-1].seq


def _read(events: QuerySet[Event]) -> list[WindowEvent]:
    role = Case(When(type=EventType.MESSAGE_ADDED, then=F("payload__role")), output_field=JSONField())
    values = events.annotate(role=role).values_list("seq", "type", "step", "role")
    return [WindowEvent(*each) for each in values[: SCAN + EXTRA]]


def _rows_after(event: WindowEvent, counted: set[int | None]) -> int:
    """Return the number of rows that an event adds after earlier events. `counted`: the steps whose card is counted."""
    if event.type != EventType.LLM_TURN_START:
        return _rows_of(event, counted)
    counted.add(event.step)
    return 2  # the heading of the step, and the card of the model call


def _rows_before(event: WindowEvent, counted: set[int | None]) -> int:
    """Return the number of rows that an event adds before later events. `counted`: the steps whose card is counted."""
    if event.type != EventType.LLM_TURN_START:
        return _rows_of(event, counted)
    has_card = event.step in counted
    counted.discard(event.step)
    return 1 if has_card else 2


def _rows_of(event: WindowEvent, counted: set[int | None]) -> int:
    """Return the number of rows of an event that does not start a model call."""
    if event.type == EventType.LLM_TURN_END or event.role == "assistant":
        is_counted = event.step is not None and event.step in counted
        counted.add(event.step)
        return 0 if is_counted else 1
    return 0 if event.role == "tool_result" or event.type == EventType.TOOL_END else 1


def _start_of_step(events: Sequence[WindowEvent], position: int) -> int:
    """Return the index of the first model call of the step of `events[position]`, or `position`. Newest first."""
    start, step = position, None
    for at in range(position, min(position + EXTRA, len(events))):
        event = events[at]
        if event.type == EventType.LLM_TURN_START:
            if step is not None and event.step != step:
                break
            start, step = at, event.step
    return start
