"""The part of a timeline on a page: its end, the rows before an event, or the rows around one.

At most eight queries, independent of the length of the log: the bounds of the window, its events, later events that
complete them, and the rows and chunks that they refer to. Queries on the log use the index on (log, seq).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from runs.pages.timeline import chunks, window_bounds
from runs.pages.timeline.cards import Card, Item, ToolCard
from runs.pages.timeline.event_texts import texts_of
from runs.pages.timeline.fold import Fold
from runs.pages.timeline.window_bounds import events_shown
from timeline import log
from timeline.events import EventType, Show, types_that
from timeline.models import Event

#: Rows of the first page and of each page of older rows.
ROWS = 100
#: Rows on either side of a requested event.
AROUND = ROWS // 2
#: Rows of a replay.
REPLAYED = 30
_CLOSERS = [EventType.MESSAGE_ADDED, *sorted(types_that(lambda kind: kind.ends_card))]


@dataclass(frozen=True)
class Window:
    """A part of a timeline."""

    items: Sequence[Item] = field(default_factory=list)
    #: The seq of the newest event; a stream continues after it.
    last_seq: int = 0
    #: Older rows are before this event; None without older rows.
    older: int | None = None
    #: Whether the window includes the newest event.
    at_end: bool = True

    @property
    def newer(self) -> int | None:
        """Return the seq of the event that newer rows are after; None without newer rows."""
        return None if self.at_end else self.last_seq


def newest(log_id: UUID, last_seq: int, show: Show = Show.ALL) -> Window:
    """Return the last rows up to event `last_seq`."""
    begin, older = window_bounds.begin(log_id, last_seq, show, ROWS)
    items, _ = _fold(log_id, (begin, last_seq), show)
    return Window(_filter(items, show), last_seq, older)


def before(log_id: UUID, seq: int, last_seq: int, show: Show = Show.ALL, *, joins: bool = False) -> Window:
    """Return the rows before event `seq`.

    With `joins`, leave out the cards that are completed at or after `seq`: the page already displays them.
    """
    end = min(seq - 1, last_seq)
    begin, older = window_bounds.begin(log_id, end, show, ROWS)
    items, crossing = _fold(log_id, (begin, end), show, ahead=True)
    if joins:
        items = [item for item in items if item.id not in crossing]
    return Window(_filter(items, show), end, older, at_end=end == last_seq)


def after(log_id: UUID, seq: int, last_seq: int, show: Show = Show.ALL) -> Window:
    """Return the rows after event `seq`. A card that is open at `seq` and changes later is among them."""
    end = window_bounds.end(log_id, seq, last_seq, show, ROWS)
    items, _ = _fold(log_id, (seq + 1, end), show, ahead=end < last_seq)
    return Window(_filter(items, show), end, older=seq + 1 if seq else None, at_end=end == last_seq)


def around(log_id: UUID, seq: int, last_seq: int, show: Show = Show.ALL, *, step: int | None = None) -> Window:
    """Return the rows around event `seq`, whose row has `is_target` set.

    With `step`, whose first event is `seq`, center on the first row of the step that the filter includes.
    """
    begin, older = window_bounds.begin(log_id, seq, show, AROUND)
    end = window_bounds.end(log_id, seq, last_seq, show, AROUND)
    items, _ = _fold(log_id, (begin, end), show, ahead=end < last_seq, target=seq if step is None else None)
    items = _filter(items, show)
    if step is not None and (first := next((item for item in items if item.step == step), None)):
        first.is_target = True
    return Window(items, end, older, at_end=end == last_seq)


def up_to(log_id: UUID, seq: int) -> Window:
    """Return the last rows up to event `seq` in their state at that event, for a replay.

    Returns only a few rows, because a player requests several frames a second.
    """
    begin, older = window_bounds.begin(log_id, seq, Show.ALL, REPLAYED)
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
    """Return the seq of the first event of a step, or None. Scans the log up to it: only on request."""
    return log.events_of(log_id).filter(step=step).values_list("seq", flat=True).first()


# --- The rows of a window ---------------------------------------------------------------------------------------------


def _fold(
    log_id: UUID, span: tuple[int, int], show: Show, *, ahead: bool = False, target: int | None = None
) -> tuple[list[Item], set[str]]:
    """Return the items of the events in `span`, and the IDs of the items completed after it."""
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
