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
from runs.pages.agents.agents_page import page_context
from timeline.display import clean, format_duration, format_elapsed
from timeline.reasons import reason_label

PAGE_SIZE = 100
RECENT_RUNS = 20


@dataclass(frozen=True)
class ListedFlow:
    """A flow in the list."""

    slug: str
    title: str
    version: int
    updated_at: datetime
    last_run: UUID | None
    last_status: str
    last_run_at: datetime | None


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
    # One row more than a page, to know whether there is a next page.
    found: list[Any] = list(_with_last_run(flows)[: PAGE_SIZE + 1])
    runs = FlowRun.objects.filter(project=entry.project).newest_first()
    context = {
        **page_context(entry, "flows"),
        "rows": [_row(flow) for flow in found[:PAGE_SIZE]],
        "after": after,
        "next": found[PAGE_SIZE - 1].slug if len(found) > PAGE_SIZE else "",
        "flow_runs": [] if after else listed(runs[:RECENT_RUNS], database_clock.now()),
    }
    return render(request, "runs/flows/flows.html", context)


def listed(flow_runs: QuerySet[FlowRun], now: datetime) -> list[ListedFlowRun]:
    """Return flow runs for a list, without reading their snapshots and definitions."""
    columns = ("status", "status_reason", "created_at", "started_at", "completed_at", "created_by", "flow_version")
    rows: Iterable[Any] = flow_runs.annotate(flow_slug=Subquery(_flows().values("slug"))).only(*columns)
    return [_listed(row, now) for row in rows]


def _flows() -> QuerySet[Flow]:
    return Flow.objects.filter(pk=OuterRef("flow"))


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
    """Return the time from the start to the end or until now, for display; empty before the start."""
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


def _row(flow: Any) -> ListedFlow:
    return ListedFlow(
        slug=flow.slug,
        title=clean(flow.title),
        version=flow.version,
        updated_at=flow.updated_at,
        last_run=flow.last_run,
        last_status=flow.last_status or "",
        last_run_at=flow.last_run_at,
    )
