"""Which part of a timeline a page shows: its end, what came before an event, or what stands around one.

Eight queries at most, however long the log and however many rows: where the window begins and ends, its events and
what completes them after it, and the rows and streamed pieces behind them. Those of the log go by the index on (log,
seq).
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
from runs.pages.timeline.cards import Item
from runs.pages.timeline.event_texts import texts_of
from runs.pages.timeline.fold import Fold
from timeline import log
from timeline.event_rows import BAD_STATUSES
from timeline.events import EventType
from timeline.models import Event

#: Rows of a first paint, and of each page of older ones.
ROWS = 100
#: Rows on either side of an event that was asked for.
AROUND = ROWS // 2
#: Events looked at to find where a window begins, and to find the beginning of the step it falls into.
SCAN, EXTRA = 1200, 200


class Show(StrEnum):
    """What is shown of a timeline."""

    ALL = "all"
    MESSAGES = "messages"
    TOOLS = "tools"
    ERRORS = "errors"


@dataclass(frozen=True)
class Window:
    items: Sequence[Item] = field(default_factory=list)
    #: The newest event that is shown; a stream goes on behind it.
    last_seq: int = 0
    #: Older rows are those before this event; None where there are none.
    older: int | None = None
    #: Whether nothing newer was left out.
    at_end: bool = True


class WindowEvent(NamedTuple):
    """What decides where a window begins."""

    seq: int
    type: str
    step: int | None
    role: Any


def newest(log_id: UUID, last_seq: int, show: Show = Show.ALL) -> Window:
    """The end of the log as of `last_seq`."""
    begin, older = _begin(log_id, last_seq, show, ROWS)
    items, _ = _folded(log_id, (begin, last_seq), show)
    return Window(_seen(items, show), last_seq, older)


def before(log_id: UUID, seq: int, last_seq: int, show: Show = Show.ALL, *, joins: bool = False) -> Window:
    """The rows before event `seq`. `joins`: they come above rows that begin with it, among which are the cards that
    were opened here and completed there."""
    end = min(seq - 1, last_seq)
    begin, older = _begin(log_id, end, show, ROWS)
    items, crossing = _folded(log_id, (begin, end), show, ahead=True)
    if joins:
        items = [item for item in items if item.id not in crossing]
    return Window(_seen(items, show), end, older, at_end=False)


def around(log_id: UUID, seq: int, last_seq: int, show: Show = Show.ALL) -> Window:
    """The rows on both sides of event `seq`, the one that shows it marked."""
    begin, older = _begin(log_id, seq, show, AROUND)
    end = _end(log_id, seq, last_seq, show)
    items, _ = _folded(log_id, (begin, end), show, ahead=end < last_seq, target=seq)
    return Window(_seen(items, show), end, older, at_end=end == last_seq)


def first_error(log_id: UUID) -> int | None:
    """The first event that tells of a failure. Looks through the log: asked on a click, never for a page."""
    return log.events_of(log_id).filter(_ERRORS).values_list("seq", flat=True).first()


# --- Where a window begins and ends ---------------------------------------------------------------------------------

_ERRORS = Q(type__in=[EventType.ERROR, EventType.RUN_FAILED, EventType.NODE_FAILED, EventType.SAFETY_BLOCK]) | Q(
    Q(payload__has_key="error") | Q(payload__status__in=sorted(BAD_STATUSES)) | Q(payload__verdict="deny"),
    type__in=[
        EventType.TOOL_END,
        EventType.RETRY_SCHEDULED,
        EventType.CHILD_RUN_COMPLETED,
        EventType.DEPLOY_STATUS,
        EventType.HOOK_DECIDED,
    ],
)
_FILTERS = {
    Show.ALL: Q(),
    Show.MESSAGES: Q(type__startswith="llm.") | Q(type=EventType.MESSAGE_ADDED),
    Show.TOOLS: Q(type__startswith="tool.")
    | Q(type__startswith="approval.")
    | Q(type__in=[EventType.SAFETY_BLOCK, EventType.HOOK_DECIDED])
    # A wait for a word about a call: its card says so.
    | Q(type=EventType.RUN_WAITING, ref_id__isnull=False),
    Show.ERRORS: _ERRORS,
}
_CLOSERS = [EventType.MESSAGE_ADDED, EventType.LLM_TURN_END, EventType.LLM_TURN_ABANDONED, EventType.TOOL_END]


def _events(log_id: UUID, show: Show) -> QuerySet[Event]:
    return Event.objects.filter(chunks.without_chunks(), _FILTERS[show], log=log_id)


def _begin(log_id: UUID, end: int, show: Show, rows: int) -> tuple[int, int | None]:
    """The event that a window of about `rows` rows up to `end` begins with, and what older ones are before.

    A window begins with a step where it can, so that cards are not cut in two by its border.
    """
    role = Case(When(type=EventType.MESSAGE_ADDED, then=KeyTransform("role", "payload")), output_field=JSONField())
    newest_first = _events(log_id, show).filter(seq__lte=end).order_by("-seq").annotate(role=role)
    lines = [WindowEvent(*found) for found in newest_first.values_list("seq", "type", "step", "role")[: SCAN + EXTRA]]
    cut, counted = len(lines) - 1, 0
    answered: set[int | None] = set()
    for place, line in enumerate(lines[:SCAN]):
        counted += _rows_of(line, answered)
        if counted >= rows:
            cut = _start_of_step(lines, place)
            break
    if cut >= len(lines) - 1 and len(lines) < SCAN + EXTRA:
        return 1, None
    return lines[cut].seq, lines[cut].seq


def _rows_of(line: WindowEvent, answered: set[int | None]) -> int:
    """How many rows an event adds. `answered`: the steps whose answer was counted, as seen from the end."""
    if line.type == EventType.LLM_TURN_START:
        card = line.step not in answered
        answered.discard(line.step)
        return 1 + card
    if line.type == EventType.LLM_TURN_END or line.role == "assistant":
        known = line.step in answered
        answered.add(line.step)
        return 0 if known and line.step is not None else 1
    return line.role != "tool_result" and line.type != EventType.TOOL_END


def _start_of_step(lines: Sequence[WindowEvent], place: int) -> int:
    """Where the step that `lines[place]` belongs to was begun: its first model call, a little further back."""
    found, step = place, None
    for at in range(place, min(place + EXTRA, len(lines))):
        line = lines[at]
        if line.type == EventType.LLM_TURN_START:
            if step is not None and line.step != step:
                break
            found, step = at, line.step
    return found


def _end(log_id: UUID, seq: int, last_seq: int, show: Show) -> int:
    """The last event of the rows after `seq`; that of the log where its end is near."""
    following = _events(log_id, show).filter(seq__gt=seq).order_by("seq")
    found = list(following.values_list("seq", flat=True)[: 2 * AROUND])
    return found[-1] if len(found) == 2 * AROUND else last_seq


# --- What it shows ----------------------------------------------------------------------------------------------------


def _folded(
    log_id: UUID, span: tuple[int, int], show: Show, *, ahead: bool = False, target: int | None = None
) -> tuple[list[Item], set[str]]:
    """The items of the events in `span`, and the ids of those that were completed only after it."""
    begin, end = span
    events = list(_events(log_id, show).filter(seq__gte=begin, seq__lte=end).order_by("seq"))
    pieces = chunks.read(log_id, chunks.missing(events, upto=end))
    closers = _closers_after(log_id, end, chunks.still_open(events)) if ahead else []
    fold = Fold(texts_of(log_id, [*events, *closers]))
    for event in chunks.merged(events, pieces):
        fold.take(event)
    crossing = {change.item.id for event in closers for change in fold.take(event) if change.item is not None}
    if target is not None:
        _mark(fold, target)
    return fold.items, crossing


def _closers_after(log_id: UUID, end: int, open_keys: set[chunks.Key]) -> list[Event]:
    """What completes, after the window, cards that were opened in it."""
    if not open_keys:
        return []
    following = log.events_of(log_id).filter(seq__gt=end, type__in=_CLOSERS)[: 2 * ROWS]
    return [event for event in following if chunks.closes(event) in open_keys]


def _mark(fold: Fold, seq: int) -> None:
    """The item that shows the event; for a piece of an answer that is stored whole, the one it lies in."""
    item = fold.owners.get(seq) or next((item for item in reversed(fold.items) if item.seq <= seq), None)
    if item is not None:
        item.is_target = True


def _seen(items: Sequence[Item], show: Show) -> list[Item]:
    return [item for item in items if show is Show.ALL or show in item.shows]
