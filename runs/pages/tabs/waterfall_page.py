"""The waterfall of a run: when each part ran, and the waits in between."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.base import database_clock
from agentops.base.http.methods import require_safe
from runs.pages.run.run_tabs import tab_context
from runs.pages.tabs.waterfall_drawing import waterfall_of
from runs.pages.timeline.fragments import seq_of
from runs.queries.run_tabs.run_spans import spans_of
from runs.statuses import RunStatus


@require_safe
def waterfall(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Show the waterfall, or the part of it after event `after`."""
    context = tab_context(request, run_id, "waterfall")
    after = seq_of(request, "after") or 0
    part = spans_of(run_id, min(after, context["run"].log.last_seq))
    now = (
        database_clock.now()
        if context["run"].state is not RunStatus.PAUSED and not context["run"].state.terminal
        else None
    )
    end = now if now is not None and part.more is None else part.last_ts
    context |= {"waterfall": waterfall_of(part.spans, end or database_clock.now()), "more": part.more, "after": after}
    return render(request, "runs/tabs/waterfall.html", context)
