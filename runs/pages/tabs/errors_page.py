"""The errors of a run: cause, step, and link into the timeline."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.accounts.names import one_line
from agentops.base.http.methods import require_safe
from runs.pages.run.banner import href_of, label_of
from runs.pages.run.run_tabs import tab_context
from runs.pages.timeline.fragments import seq_of
from runs.queries.run_tabs.failures_list import context_of, failures, kind_of, message_of
from timeline.display import Clip, clean, clip
from timeline.event_rows import EventRow, payload_of, row_of
from timeline.models import Event

PAGE_SIZE = 100
MESSAGE_BYTES = 2048
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
    after = min(seq_of(request, "after") or 0, context["run"].log.last_seq)
    # One row more than a page, to know whether there is a next page.
    events = failures(run_id, after, PAGE_SIZE + 1)
    shown = events[:PAGE_SIZE]
    context |= {
        "errors": [_listed(event, context["page"]) for event in shown],
        "next_after": shown[-1].seq if len(events) > PAGE_SIZE else None,
        "after": after,
    }
    return render(request, "runs/tabs/errors.html", context)


def _listed(event: Event, page: str) -> ListedError:
    payload = payload_of(event)
    reason, message = label_of(kind_of(payload)), clip(message_of(payload), MESSAGE_BYTES)
    context = one_line(clean(context_of(payload)), CONTEXT_LENGTH)
    return ListedError(row_of(event, page), event.step, context, reason, message, href_of(event))
