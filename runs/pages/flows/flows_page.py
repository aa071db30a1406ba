"""The flows of a project, and their newest runs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import OuterRef, QuerySet, Subquery, UUIDField
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.accounts.access import Action, enter
from agentops.accounts.names import SLUG_PATTERN
from agentops.accounts.requests import principal_of
from agentops.base import database_clock
from agentops.base.http.methods import require_safe
from agentops.base.refusals import InvalidQuery
from runs.models import Flow, FlowRun
from runs.pages.page_parts import project_context, split_page
from timeline.display import clean, format_duration, format_elapsed
from timeline.reasons import reason_label

#: Flows of a page, and flow runs on the first page.
PAGE_SIZE, RECENT_RUNS = 100, 20


@dataclass(frozen=True)
class ListedFlowRun:
    """A flow run in a list."""

    id: UUID
    flow: str
    version: int
    status: str
    reason: str
    created_at: datetime
    created_by: str
    duration: str


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show a page of flows by name, and on the first page the newest flow runs of the project."""
    entry = enter(principal_of(request), project, Action.READ)
    after = request.GET.get("after", "")
    if after and not re.match(SLUG_PATTERN, after):
        raise InvalidQuery(f"after must be the name of a flow, not {after[:64]!r}")
    flows = Flow.objects.filter(project=entry.project, slug__gt=after).defer("definition").order_by("slug")
    page, has_more = split_page(_with_last_run(flows), PAGE_SIZE)
    for flow in page:
        flow.title = clean(flow.title)
    runs = FlowRun.objects.filter(project=entry.project).newest_first()
    context = {
        **project_context(entry, "flows"),
        "rows": page,
        "after": after,
        "next": page[-1].slug if has_more else "",
        "flow_runs": [] if after else listed(runs[:RECENT_RUNS], database_clock.now()),
    }
    return render(request, "runs/flows/flows.html", context)


def listed(flow_runs: QuerySet[FlowRun], now: datetime) -> list[ListedFlowRun]:
    """Return flow runs as rows of a list. Does not read their snapshots and definitions."""
    columns = ("status", "status_reason", "created_at", "started_at", "completed_at", "created_by", "flow_version")
    slug = Flow.objects.filter(pk=OuterRef("flow")).values("slug")
    rows: Iterable[Any] = flow_runs.annotate(flow_slug=Subquery(slug)).only(*columns)
    return [_listed(row, now) for row in rows]


def _listed(flow_run: Any, now: datetime) -> ListedFlowRun:
    return ListedFlowRun(
        id=flow_run.pk,
        flow=flow_run.flow_slug or "",
        version=flow_run.flow_version,
        status=flow_run.status,
        reason=reason_label(flow_run.status_reason),
        created_at=flow_run.created_at,
        created_by=clean(flow_run.created_by),
        duration=duration_of(flow_run, now),
    )


def duration_of(flow_run: FlowRun, now: datetime) -> str:
    """Return the time from the start to the end, or to `now`, for display; empty before the start."""
    if flow_run.started_at is None:
        return ""
    seconds = database_clock.seconds_between(flow_run.started_at, flow_run.completed_at or now)
    return format_elapsed(seconds) if flow_run.completed_at else format_duration(seconds)


def _with_last_run(flows: QuerySet[Flow]) -> QuerySet[Flow]:
    """Add the newest run of each flow. Uses the index `flow_run_of_flow`."""
    newest = FlowRun.objects.filter(flow=OuterRef("pk")).newest_first()
    return flows.annotate(
        last_run=Subquery(newest.values("log")[:1], output_field=UUIDField()),
        last_status=Subquery(newest.values("status")[:1]),
        last_run_at=Subquery(newest.values("created_at")[:1]),
    )
