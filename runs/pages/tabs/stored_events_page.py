"""The stored events of a run: number, type, source and time; the JSON on demand."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from agentops.base.http.methods import require_safe
from agentops.base.refusals import InvalidQuery
from runs.pages.run.banner import href_of
from runs.pages.run.run_tabs import tab_context
from runs.pages.timeline.fragments import seq_of
from runs.queries.run_tabs.event_list import FAMILIES, stored_events
from timeline.display import clean, clip
from timeline.event_rows import row_of
from timeline.events.failures import is_failure
from timeline.models import Event

PAGE_SIZE = 100
TYPE_BYTES = 160
TEXT_BYTES = 200


@dataclass(frozen=True)
class ListedEvent:
    """An event as a row."""

    seq: int
    ts: datetime
    type: str
    text: str
    step: int | None
    source: str
    href: str
    json_href: str
    late: bool
    #: A description of the redactions made before the event was stored.
    replaced: str
    is_error: bool


@require_safe
def events(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Show the events after event `after` of the family `type`; streamed pieces only with `chunks`."""
    context = tab_context(request, run_id, "events")
    family, chunks = _family(request), request.GET.get("chunks") == "1"
    after = min(seq_of(request, "after") or 0, context["run"].log.last_seq)
    # One row more than a page, to know whether there is a next page.
    found = stored_events(run_id, after, PAGE_SIZE + 1, family=family, chunks=chunks)
    shown = found[:PAGE_SIZE]
    kept = {name: value for name, value in (("type", family), ("chunks", "1" if chunks else "")) if value}
    next_after = {**kept, "after": str(shown[-1].seq)} if len(found) > PAGE_SIZE else {}
    context |= {
        "events": [_listed(event, context["page"]) for event in shown],
        "families": FAMILIES,
        "family": family,
        "chunks": chunks,
        "after": after,
        "first_query": urlencode(kept),
        "next_query": urlencode(next_after),
        "last_query": urlencode({**kept, "after": str(max(context["run"].log.last_seq - PAGE_SIZE, 0))}),
    }
    return render(request, "runs/tabs/events.html", context)


def _listed(event: Event, page: str) -> ListedEvent:
    payload = event.payload if isinstance(event.payload, dict) else {}
    return ListedEvent(
        seq=event.seq,
        ts=event.ts,
        type=clip(event.type, TYPE_BYTES).text,
        text=clip(row_of(event, page).text, TEXT_BYTES).text,
        step=event.step,
        source=event.source,
        href=href_of(event),
        json_href=reverse("runs:event", args=[event.log_id, event.seq]),
        late=event.late,
        replaced=clean(event.sanitized).replace(",", ", "),
        is_error=is_failure(event.type, payload),
    )


def _family(request: HttpRequest) -> str:
    family = request.GET.get("type", "")
    if family and family not in FAMILIES:
        raise InvalidQuery(f"type must be one of {', '.join(FAMILIES)}")
    return family
