"""The part of a timeline that a request selects, for the first page and for fragments that an open page loads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.base.refusals import InvalidQuery
from runs.pages.timeline import window
from runs.pages.timeline.window import Window
from timeline.events import Show
from timeline.live.cursor import StreamCursor
from timeline.models import Log

#: The header with the cursor of a fragment that ends with the newest event: the page's stream continues there.
CURSOR_HEADER = "Timeline-Cursor"
NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)


def window_of(request: HttpRequest, log_id: UUID, last_seq: int, show: Show = Show.ALL) -> tuple[Window, str]:
    """Return the rows selected by `event`, `step`, `before` or `after`, by default the newest, and a notice.

    The notice names a requested event or step that does not exist; otherwise it is empty. Read `last_seq` before any
    row, so that a stream from there neither misses nor repeats an event.
    """
    event, step = seq_of(request, "event"), seq_of(request, "step", "the number of a step")
    before, after = seq_of(request, "before"), seq_of(request, "after")
    notice = ""
    if event is not None and not 1 <= event <= last_seq:
        notice = f"Event {event} does not exist: the last event is {last_seq}. Showing the newest events."
    elif event is None and step is not None:
        event = window.start_of_step(log_id, step)
        if event is None:
            notice = f"This run has no step {step}. Showing the newest events."
    if notice:
        return window.newest(log_id, last_seq, show), notice
    if event is not None:
        return window.around(log_id, event, last_seq, show, step=step), ""
    if before is not None:
        return window.before(log_id, before, last_seq, show), ""
    if after is not None:
        return window.after(log_id, after, last_seq, show), ""
    return window.newest(log_id, last_seq, show), ""


def rows_fragment(
    request: HttpRequest, ledger: Log, incarnation: int, context: Mapping[str, Any], show: Show = Show.ALL
) -> HttpResponse:
    """Return the rows before event `before` or after event `after`, by default the newest, with links to the others.

    Read `ledger` after `incarnation`.
    """
    before, after = seq_of(request, "before"), seq_of(request, "after")
    if before is not None:
        part = window.before(ledger.pk, before, ledger.last_seq, show, joins=True)
        newer = None  # the page already has the newer rows
    elif after is not None:
        part = window.after(ledger.pk, after, ledger.last_seq, show)
        newer = part.newer
    else:
        part, newer = window.newest(ledger.pk, ledger.last_seq, show), None
    older = None if after is not None else part.older
    response = render(
        request, "runs/run/_timeline_rows.html", {**context, "items": part.items, "older": older, "newer": newer}
    )
    if before is None and part.at_end:
        response.headers[CURSOR_HEADER] = str(StreamCursor(part.last_seq, incarnation))
    return response


def seq_of(request: HttpRequest, name: str, what: str = "the sequence number of an event") -> int | None:
    """Return the number in a query parameter, or None. Raise InvalidQuery unless it has 1 to 18 digits."""
    text = request.GET.get(name)
    if not text:
        return None
    if not NUMBER.fullmatch(text):
        raise InvalidQuery(f"{name} must be {what}, not {text[:64]!r}")
    return int(text)
