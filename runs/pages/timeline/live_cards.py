"""Live rows of a run's timeline, rendered with the templates of the first page as out-of-band swaps.

The output is shared by all readers of a stream, so it must not depend on the user.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.template.loader import render_to_string
from django.utils.html import format_html

from runs.pages.run import facts
from runs.pages.timeline import chunks
from runs.pages.timeline.event_texts import texts_of
from runs.pages.timeline.fold import CardChange, Change, Fold
from timeline import log, replay
from timeline.events import EventType
from timeline.live.streams import Piece, Rendering
from timeline.models import Event
from timeline.shown_events import payload_of

#: Events to read before a batch: the starts of a model call and of all tool calls of a step (MAX_CALLS in
#: runs.engine.turns.open_call), and some more.
CONTEXT = 72
#: Events to read if an event without a row ends a card, which may be any card before it.
WIDE_CONTEXT = 200
#: A reader that is further behind must reload the page.
MAX_BEHIND = 1000


def render(log_id: UUID, batch: Sequence[Event]) -> list[Piece]:
    """Return one piece for each event. Each piece is complete, because a reader may start with any of them.

    "rows" contains the rows that the event adds or changes, in order; "status" makes the page reload its header. At
    most seven queries for a batch.
    """
    if not batch:
        return []
    fold = Fold(texts_of(log_id, batch))
    for event in _context(log_id, batch):
        fold.take(event)
    rows = ["".join([_html(change) for change in fold.take(event)]) for event in batch]
    data = facts.load_run_data(log_id)
    if data is not None:
        rows[-1] += render_to_string("runs/run/_facts.html", {"facts": facts.facts_of(data), "oob": True})
    return [_piece(event, text, data.run.status if data else "") for event, text in zip(batch, rows, strict=True)]


#: The rendering of a run's stream (see timeline.live).
HTML = Rendering("html", render, is_merged=True, max_behind=MAX_BEHIND)


def _piece(event: Event, rows: str, status: str) -> Piece:
    """Return the piece of an event with its rows as HTML. `status` is the current status of the run."""
    piece = {"rows": rows} if rows else {}
    if event.type.startswith("run."):
        piece["status"] = _status_after(event) or status
    elif event.type == EventType.COMMAND_RECEIVED or _is_about_retry(event):
        # The header shows pending commands and scheduled retries.
        piece["status"] = status
    return piece


def _is_about_retry(event: Event) -> bool:
    if event.type in (EventType.LLM_TURN_START, EventType.LLM_TURN_END):
        return bool(payload_of(event).get("attempt"))
    return event.type == EventType.RETRY_SCHEDULED


def _status_after(event: Event) -> str:
    """Return the status that the event sets; empty if it is unknown."""
    try:
        return replay.fold([event]).status
    except (KeyError, TypeError, AttributeError):
        return ""  # an older version stored another payload


def _html(change: Change) -> str:
    """Return the HTML with which htmx applies a change to the page."""
    if change.kind is CardChange.APPEND:
        return format_html('<div hx-swap-oob="beforeend:#{}">{}</div>', change.at, change.text)
    assert change.item is not None
    oob = {
        CardChange.ADD: "",
        CardChange.PUT: "true",
        CardChange.REPLACE: f"outerHTML:#{change.at}",
        CardChange.STRIKE: f"outerHTML:#{change.at}",
    }[change.kind]
    context = {"item": change.item, "oob": oob, "append": change.kind is not CardChange.STRIKE}
    return render_to_string(change.item.template, context).strip()


def _context(log_id: UUID, batch: Sequence[Event]) -> list[Event]:
    """Return earlier events: starts of turns and calls that the batch ends, and chunks of texts without a row."""
    rollbacks = [event for event in batch if event.type == EventType.RUN_ROLLED_BACK]
    unopened = chunks.closers(batch)
    if not unopened and not rollbacks:
        return []
    earlier = log.events_of(log_id).filter(seq__lt=batch[0].seq).order_by("-seq")
    if all(event.ref_id or event.type == EventType.LLM_TURN_ABANDONED for event in unopened):
        context = list(earlier.filter(type__in=chunks.OPENERS)[:CONTEXT])[::-1]
    else:
        context = list(earlier.filter(chunks.without_chunks())[:WIDE_CONTEXT])[::-1]
    first = batch[0].seq
    spans = [span for span in chunks.missing([*context, *batch]) if span.before >= first]
    spans = [chunks.EventSpan(span.after, min(span.before, first)) for span in spans]
    return chunks.merge(context, chunks.read(log_id, spans))
