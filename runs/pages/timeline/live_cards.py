"""The rows of a run's timeline as they come: the same templates as the first paint, told what to replace.

Whoever reads sees the same, so nothing here may depend on who it is.
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
from timeline.event_rows import payload_of
from timeline.events import EventType
from timeline.live.rendering import Piece, Rendering
from timeline.models import Event

#: Calls that a step may have open, with the answer that asked for them; see MAX_CALLS in runs.engine.turns.open_call.
CONTEXT = 72
#: Where no row says what an event completes, anything before it may.
WIDE_CONTEXT = 200
#: Further behind, a reader is better served by a fresh page.
MAX_BEHIND = 1000


def render(log_id: UUID, batch: Sequence[Event]) -> list[Piece]:
    """One piece per event, each complete in itself: a reader may begin with any of them.

    "rows" is what the event adds or changes, in order; "status" says that the head of the page has to be looked at
    again. Seven queries at most, whatever the size of the batch.
    """
    if not batch:
        return []
    fold = Fold(texts_of(log_id, batch))
    for event in _context(log_id, batch):
        fold.take(event)
    rows = ["".join([_html(change) for change in fold.take(event)]) for event in batch]
    now = facts.load(log_id)
    if now is not None:
        rows[-1] += render_to_string("runs/_facts.html", {"facts": facts.facts_of(now), "oob": True})
    return [_piece(event, text, now.run.status if now else "") for event, text in zip(batch, rows, strict=True)]


#: The rendering of a run's stream (see timeline.live).
HTML = Rendering("html", render, merged=True, max_behind=MAX_BEHIND)


def _piece(event: Event, rows: str, status: str) -> Piece:
    piece = {"rows": rows} if rows else {}
    if event.type.startswith("run."):
        piece["status"] = _status_after(event) or status
    elif event.type == EventType.COMMAND_RECEIVED or _is_of_a_retry(event):
        # A wish is shown until the worker has heard of it, a try that comes until the model has answered.
        piece["status"] = status
    return piece


def _is_of_a_retry(event: Event) -> bool:
    tries = event.type in (EventType.LLM_TURN_START, EventType.LLM_TURN_END) and bool(payload_of(event).get("attempt"))
    return tries or event.type == EventType.RETRY_SCHEDULED


def _status_after(event: Event) -> str:
    try:
        return replay.fold([event]).status
    except (KeyError, TypeError, AttributeError):
        return ""  # its payload is of older rules


def _html(change: Change) -> str:
    if change.act is CardChange.APPEND:
        return format_html('<div hx-swap-oob="beforeend:#{}">{}</div>', change.at, change.text)
    assert change.item is not None
    oob = {
        CardChange.ADD: "",
        CardChange.PUT: "true",
        CardChange.REPLACE: f"outerHTML:#{change.at}",
        CardChange.STRIKE: f"outerHTML:#{change.at}",
    }[change.act]
    context = {"item": change.item, "oob": oob, "append": change.act is not CardChange.STRIKE}
    return render_to_string(change.item.template, context).strip()


def _context(log_id: UUID, batch: Sequence[Event]) -> list[Event]:
    """The events before the batch that opened what it completes, with the pieces of what was never stored whole."""
    taken_back = [event for event in batch if event.type == EventType.RUN_ROLLED_BACK]
    completing = chunks.unopened(batch)
    if not completing and not taken_back:
        return []
    earlier = log.events_of(log_id).filter(seq__lt=batch[0].seq).order_by("-seq")
    if all(event.ref_id or event.type == EventType.LLM_TURN_ABANDONED for event in completing):
        openers = earlier.filter(type__in=[EventType.LLM_TURN_START, EventType.TOOL_START])
        found = list(openers[:CONTEXT])[::-1]
    else:
        found = list(earlier.filter(chunks.without_chunks())[:WIDE_CONTEXT])[::-1]
    first = batch[0].seq
    spans = [
        chunks.EventSpan(s.after, min(s.before, first)) for s in chunks.missing([*found, *batch]) if s.before >= first
    ]
    return chunks.merged(found, chunks.read(log_id, spans))
