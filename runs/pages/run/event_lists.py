"""The tabs that list events of a run: its errors, and all events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from agentops.accounts.names import one_line
from agentops.base.http.methods import require_safe
from agentops.base.refusals import InvalidQuery
from runs.pages.page_parts import split_page
from runs.pages.run.any_run import tab_context
from runs.pages.run.banner import href_of, reason_text
from runs.pages.run.timeline_page import seq_of
from runs.queries.tab_lists import FAMILIES, context_of, failures, kind_of, message_of, stored_events
from timeline.display import Clip, clean, clip
from timeline.models import Event
from timeline.shown_events import EventRow, is_failure, payload_of, row_of

ERRORS_PER_PAGE, EVENTS_PER_PAGE = 100, 100
#: Maximum bytes of an error message, the type of an event and its text.
MESSAGE_BYTES, TYPE_BYTES, TEXT_BYTES = 2048, 160, 200
#: Maximum characters of the context of an error.
CONTEXT_LENGTH = 60


@dataclass(frozen=True)
class ListedError:
    """A failure as a row."""

    row: EventRow
    step: int | None
    #: The subject of the error, such as the name of the tool.
    context: str
    #: The kind of error in words, and the message.
    reason: str
    message: Clip
    href: str


@require_safe
def errors(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Show the failures of a run after event `after`."""
    context = tab_context(request, run_id, "errors")
    after = _after(request, context)
    page, has_more = split_page(failures(run_id, after, ERRORS_PER_PAGE + 1), ERRORS_PER_PAGE)
    context |= {
        "errors": [_listed_error(event, context["page"]) for event in page],
        "next_after": page[-1].seq if has_more else None,
        "after": after,
    }
    return render(request, "runs/tabs/errors.html", context)


def _after(request: HttpRequest, context: dict[str, Any]) -> int:
    """Return the sequence number after which the page starts, at most the last one: more may not fit the database."""
    last_seq: int = context["run"].log.last_seq
    return min(seq_of(request, "after") or 0, last_seq)


def _listed_error(event: Event, page: str) -> ListedError:
    payload = payload_of(event)
    reason, message = reason_text(kind_of(payload)), clip(message_of(payload), MESSAGE_BYTES)
    context = one_line(clean(context_of(payload)), CONTEXT_LENGTH)
    return ListedError(row_of(event, page), event.step, context, reason, message, href_of(event))


@dataclass(frozen=True)
class ListedEvent:
    """An event as a row."""

    event: Event
    type: str
    text: str
    href: str
    json_href: str
    #: A description of the redactions made before the event was stored.
    replaced: str
    is_error: bool


@require_safe
def events(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Show the events after event `after`: of the family `type`, by default of all; streamed chunks with `chunks=1`."""
    context = tab_context(request, run_id, "events")
    family, chunks = _family(request), request.GET.get("chunks") == "1"
    after = _after(request, context)
    rows = stored_events(run_id, after, EVENTS_PER_PAGE + 1, family=family, chunks=chunks)
    page, has_more = split_page(rows, EVENTS_PER_PAGE)
    kept = {name: value for name, value in (("type", family), ("chunks", "1" if chunks else "")) if value}
    next_after = {**kept, "after": str(page[-1].seq)} if has_more else {}
    context |= {
        "events": [_listed_event(event, context["page"]) for event in page],
        "families": FAMILIES,
        "family": family,
        "chunks": chunks,
        "after": after,
        "first_query": urlencode(kept),
        "next_query": urlencode(next_after),
        "last_query": urlencode({**kept, "after": str(max(context["run"].log.last_seq - EVENTS_PER_PAGE, 0))}),
    }
    return render(request, "runs/tabs/events.html", context)


def _listed_event(event: Event, page: str) -> ListedEvent:
    payload = event.payload if isinstance(event.payload, dict) else {}
    return ListedEvent(
        event,
        type=clip(event.type, TYPE_BYTES).text,
        text=clip(row_of(event, page).text, TEXT_BYTES).text,
        href=href_of(event),
        json_href=reverse("runs:event", args=[event.log_id, event.seq]),
        replaced=clean(event.sanitized).replace(",", ", "),
        is_error=is_failure(event.type, payload),
    )


def _family(request: HttpRequest) -> str:
    """Return the parameter `type`. Raises InvalidQuery for an unknown family of events."""
    family = request.GET.get("type", "")
    if family and family not in FAMILIES:
        raise InvalidQuery(f"type must be one of {', '.join(FAMILIES)}")
    return family
