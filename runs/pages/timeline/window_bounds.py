"""The first and the last event of a part of a timeline: a number of rows, and whole steps if possible.

Each bound takes one query, whose cost does not depend on the length of the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Case, JSONField, Q, QuerySet, When
from django.db.models.fields.json import KeyTransform

from runs.pages.timeline import chunks
from runs.pages.timeline.event_texts import CALL_UPDATES
from timeline.events import EventType, Show, types_that
from timeline.events.failures import FAILURES
from timeline.models import Event

#: Maximum events to search for the bound of a window, and additionally for the bound of its step.
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
    # The card of the call displays these.
    | Q(type__in=CALL_UPDATES, ref_id__isnull=False),
    Show.ERRORS: FAILURES,
}


def events_shown(log_id: UUID, show: Show) -> QuerySet[Event]:
    """Return the events that pass a filter, without chunks."""
    return Event.objects.filter(chunks.without_chunks(), _FILTERS[show], log=log_id)


def begin(log_id: UUID, end: int, show: Show, rows: int) -> tuple[int, int | None]:
    """Return the first event of a window of about `rows` rows up to `end`, and the event that older rows are before.

    A window starts with a step if possible, so that it does not split cards.
    """
    lines = _lines(events_shown(log_id, show).filter(seq__lte=end).order_by("-seq"))
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


def end(log_id: UUID, seq: int, last_seq: int, show: Show, rows: int) -> int:
    """Return the last event of a window of about `rows` rows after `seq`: `last_seq` if that is near.

    A window ends before a step if possible, so that the next one starts with it.
    """
    lines = _lines(events_shown(log_id, show).filter(seq__gt=seq, seq__lte=last_seq).order_by("seq"))
    row_count = 0
    started: set[int | None] = set()
    for position, line in enumerate(lines[:SCAN]):
        row_count += _rows_added(line, started)
        if row_count < rows:
            continue
        for following in lines[position + 1 : position + 1 + EXTRA]:
            if following.type == EventType.LLM_TURN_START:
                return following.seq - 1
        if position + 1 + EXTRA >= len(lines) and len(lines) < SCAN + EXTRA:
            return last_seq
        return line.seq
    return last_seq if len(lines) < SCAN + EXTRA else lines[-1].seq


def _lines(events: QuerySet[Event]) -> list[WindowEvent]:
    role = Case(When(type=EventType.MESSAGE_ADDED, then=KeyTransform("role", "payload")), output_field=JSONField())
    values = events.annotate(role=role).values_list("seq", "type", "step", "role")
    return [WindowEvent(*each) for each in values[: SCAN + EXTRA]]


def _rows_added(line: WindowEvent, started: set[int | None]) -> int:
    """Return the number of rows that an event adds after the previous events. `started` are the steps with a card."""
    if line.type == EventType.LLM_TURN_START:
        started.add(line.step)
        return 2
    if line.type == EventType.LLM_TURN_END or line.role == "assistant":
        is_known = line.step in started
        started.add(line.step)
        return 0 if is_known and line.step is not None else 1
    return line.role != "tool_result" and line.type != EventType.TOOL_END


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
