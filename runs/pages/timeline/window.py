"""The part of a timeline on a page: its end, the rows before an event, or the rows around one.

At most eight queries, independent of the length of the log: the bounds of the window, its events, later events that
complete them, and the rows and chunks that they refer to. Queries on the log use the index on (log, seq).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Case, JSONField, Q, QuerySet, When
from django.db.models.fields.json import KeyTransform

from runs.pages.timeline import chunks
from runs.pages.timeline.cards import Item, ToolCard
from runs.pages.timeline.event_texts import texts_of
from runs.pages.timeline.fold import Fold
from timeline import log
from timeline.events import EventType
from timeline.events.failures import FAILURES
from timeline.models import Event

#: Rows of the first page and of each page of older rows.
ROWS = 100
#: Rows on either side of a requested event.
AROUND = ROWS // 2
#: Rows of a replay.
REPLAYED = 30
#: Maximum events to search for the start of a window, and additionally for the start of its first step.
SCAN, EXTRA = 1200, 200


class Show(StrEnum):
    """The filter of a timeline."""

    ALL = "all"
    MESSAGES = "messages"
    TOOLS = "tools"
    ERRORS = "errors"


@dataclass(frozen=True)
class Window:
    """A part of a timeline."""

    items: Sequence[Item] = field(default_factory=list)
    #: The seq of the newest event; a stream continues after it.
    last_seq: int = 0
    #: Older rows are before this event; None if there are none.
    older: int | None = None
    #: Whether the window includes the newest event.
    at_end: bool = True


class WindowEvent(NamedTuple):
    """The fields of an event that determine where a window starts."""

    seq: int
    type: str
    step: int | None
    role: Any


def newest(log_id: UUID, last_seq: int, show: Show = Show.ALL) -> Window:
    """Return the last rows up to event `last_seq`."""
    begin, older = _begin(log_id, last_seq, show, ROWS)
    items, _ = _fold(log_id, (begin, last_seq), show)
    return Window(_filter(items, show), last_seq, older)


def before(log_id: UUID, seq: int, last_seq: int, show: Show = Show.ALL, *, joins: bool = False) -> Window:
    """Return the rows before event `seq`.

    With `joins`, leave out the cards that are completed at or after `seq`: the page already displays them.
    """
    end = min(seq - 1, last_seq)
    begin, older = _begin(log_id, end, show, ROWS)
    items, crossing = _fold(log_id, (begin, end), show, ahead=True)
    if joins:
        items = [item for item in items if item.id not in crossing]
    return Window(_filter(items, show), end, older, at_end=False)


def around(log_id: UUID, seq: int, last_seq: int, show: Show = Show.ALL) -> Window:
    """Return the rows around event `seq`, whose row has `is_target` set."""
    begin, older = _begin(log_id, seq, show, AROUND)
    end = _end(log_id, seq, last_seq, show)
    items, _ = _fold(log_id, (begin, end), show, ahead=end < last_seq, target=seq)
    return Window(_filter(items, show), end, older, at_end=end == last_seq)


def up_to(log_id: UUID, seq: int) -> Window:
    """Return the last rows up to event `seq` as they were then, for a replay: cards show nothing that came later.

    Only a few rows, because a player asks several times a second.
    """
    begin, older = _begin(log_id, seq, Show.ALL, REPLAYED)
    items, _ = _fold(log_id, (begin, seq), Show.ALL)
    for item in items:
        if isinstance(item, ToolCard):
            # It links to a form that changes the run.
            item.needs_outcome = False
    return Window(items, seq, older)


def first_error(log_id: UUID) -> int | None:
    """Return the seq of the first event with an error, or None. Scans the log, so call it only on request."""
    return log.events_of(log_id).filter(FAILURES).values_list("seq", flat=True).first()


# --- The bounds of a window -----------------------------------------------------------------------------------------

_FILTERS = {
    Show.ALL: Q(),
    Show.MESSAGES: Q(type__startswith="llm.") | Q(type=EventType.MESSAGE_ADDED),
    Show.TOOLS: Q(type__startswith="tool.")
    | Q(type__startswith="approval.")
    | Q(type__in=[EventType.SAFETY_BLOCK, EventType.HOOK_DECIDED])
    # A wait for the outcome of a call: its card displays it.
    | Q(type=EventType.RUN_WAITING, ref_id__isnull=False),
    Show.ERRORS: FAILURES,
}
_CLOSERS = [EventType.MESSAGE_ADDED, EventType.LLM_TURN_END, EventType.LLM_TURN_ABANDONED, EventType.TOOL_END]


def _events(log_id: UUID, show: Show) -> QuerySet[Event]:
    return Event.objects.filter(chunks.without_chunks(), _FILTERS[show], log=log_id)


def _begin(log_id: UUID, end: int, show: Show, rows: int) -> tuple[int, int | None]:
    """Return the first event of a window of about `rows` rows up to `end`, and the event that older rows are before.

    A window starts with a step if possible, so that it does not split cards.
    """
    role = Case(When(type=EventType.MESSAGE_ADDED, then=KeyTransform("role", "payload")), output_field=JSONField())
    newest_first = _events(log_id, show).filter(seq__lte=end).order_by("-seq").annotate(role=role)
    lines = [WindowEvent(*values) for values in newest_first.values_list("seq", "type", "step", "role")[: SCAN + EXTRA]]
    index, row_count = len(lines) - 1, 0
    answered: set[int | None] = set()
    for position, line in enumerate(lines[:SCAN]):
        row_count += _rows_of(line, answered)
        if row_count >= rows:
            index = _start_of_step(lines, position)
            break
    if index >= len(lines) - 1 and len(lines) < SCAN + EXTRA:
        return 1, None
    return lines[index].seq, lines[index].seq


def _rows_of(line: WindowEvent, answered: set[int | None]) -> int:
    """Return the number of rows that an event adds. `answered` are the steps whose response is counted already."""
    if line.type == EventType.LLM_TURN_START:
        card = line.step not in answered
        answered.discard(line.step)
        return 1 + card
    if line.type == EventType.LLM_TURN_END or line.role == "assistant":
        is_known = line.step in answered
        answered.add(line.step)
        return 0 if is_known and line.step is not None else 1
    return line.role != "tool_result" and line.type != EventType.TOOL_END


def _start_of_step(lines: Sequence[WindowEvent], position: int) -> int:
    """Return the index of the first model call of the step of `lines[position]`, or `position`."""
    start, step = position, None
    for at in range(position, min(position + EXTRA, len(lines))):
        line = lines[at]
        if line.type == EventType.LLM_TURN_START:
            if step is not None and line.step != step:
                break
            start, step = at, line.step
    return start


def _end(log_id: UUID, seq: int, last_seq: int, show: Show) -> int:
    """Return the last event of a window after `seq`; the end of the log if it is near."""
    following = _events(log_id, show).filter(seq__gt=seq).order_by("seq")
    seqs = list(following.values_list("seq", flat=True)[: 2 * AROUND])
    return seqs[-1] if len(seqs) == 2 * AROUND else last_seq


# --- The rows of a window ---------------------------------------------------------------------------------------------


def _fold(
    log_id: UUID, span: tuple[int, int], show: Show, *, ahead: bool = False, target: int | None = None
) -> tuple[list[Item], set[str]]:
    """Return the items of the events in `span`, and the IDs of those completed after it."""
    begin, end = span
    events = list(_events(log_id, show).filter(seq__gte=begin, seq__lte=end).order_by("seq"))
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
    return [item for item in items if show is Show.ALL or show in item.shows]
