"""The start page of a project: what needs a person, running runs, totals of the last days, and status lines.

Also the page at `/`, which redirects to the only project, or lists the projects.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.db.models import Count, Max, Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse

from agentops.accounts.access import Action, EnteredProject, enter, project_for, projects_for
from agentops.accounts.models import Project
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import see_other
from agentops.base import database_clock
from agentops.base.database_clock import Now
from agentops.base.http.methods import require_POST, require_safe
from agentops.base.refusals import Refusal
from runs import demo
from runs.agents import budgets
from runs.agents.budgets import Budget
from runs.external.ingest_counts import ACCEPTED, NOT_REFUSED
from runs.models import AgentRun, FlowRun, IngestCount, Sink
from runs.pages import commands
from runs.pages.charts_page import RANGES, RunWindow, agent_rows, charts_of, flow_rows, model_rows, total_row
from runs.pages.inbox_page import entry_of
from runs.pages.page_parts import project_context
from runs.pages.runs.run_row import listed_runs, markup_of, read, rows_of
from runs.queries import remote_processes, usage
from runs.queries.needs import FAILED_FOR, NeedCounts, count_of, label_of, need_counts, needs
from runs.queries.project_sums import ended_by_flow, unended_by_status, used_since
from runs.queries.sink_health import lag_s, with_health
from runs.statuses import RunStatus
from timeline.display import clean, format_duration

#: Maximum number of sinks to check.
MAX_SINKS = 50
#: The statuses of flow runs that have not ended, in the order of their display.
_UNENDED = (RunStatus.RUNNING, RunStatus.WAITING, RunStatus.PAUSED, RunStatus.QUEUED)
#: Minutes over which the event rate is measured.
RATE_MINUTES = 5


@dataclass(frozen=True)
class SiteLine:
    """A status line about a service of the project, such as its workers."""

    name: str
    text: str
    #: Whether there is a problem.
    is_concern: bool = False
    #: The meter of a budget.
    used: float = 0
    limit: float = 0


def live_lines(project: Project, now: datetime) -> Iterator[SiteLine]:
    """Yield the lines about workers, remote processes, flow runs and senders. Six queries."""
    running = AgentRun.objects.running().of_workers().filter(project=project)
    leases = running.filter(lease_expires_at__gte=Now()).aggregate(
        workers=Count("lease_owner", distinct=True), runs=Count("pk"), newest=Max("lease_expires_at")
    )
    queued = AgentRun.objects.native().of_workers().filter(project=project, status=RunStatus.QUEUED)
    waiting = queued[:100].count()
    queue = f"; {label_of(waiting)} in the queue" if waiting else ""
    if leases["workers"]:
        # The newest lease was renewed a lease's duration before its end.
        age = max((now - leases["newest"]).total_seconds() + settings.AGENTOPS_LEASE_S, 0.0)
        workers = f"{leases['workers']} worker{'s' * (leases['workers'] != 1)}"
        runs = f"{leases['runs']} run{'s' * (leases['runs'] != 1)}"
        yield SiteLine("Workers", f"{workers} with {runs}, last heartbeat {format_duration(age)} ago{queue}")
    else:
        yield SiteLine("Workers", f"none has a run of this project{queue}; idle workers are not counted")
    yield from _remote_processes(project)
    if flow_runs := unended_by_status(project):
        counts = [f"{flow_runs[status]} {status.value}" for status in _UNENDED if status in flow_runs]
        yield SiteLine("Flow runs", ", ".join(counts))
    yield from _ingest(project, now)


def _remote_processes(project: Project) -> Iterator[SiteLine]:
    """Yield the line about the processes that execute remote runs; none without processes and such runs."""
    load = remote_processes.load_of(project)
    if not any(load):
        return
    processes = f"{load.processes} process{'es' * (load.processes != 1)}" if load.processes else "no process"
    text = f"{processes} with {load.running} run{'s' * (load.running != 1)}"
    queue = f"; {label_of(load.queued)} in the queue" if load.queued else ""
    yield SiteLine("Remote runs", text + queue, is_concern=bool(load.queued and not load.processes))


def _ingest(project: Project, now: datetime) -> Iterator[SiteLine]:
    """Yield the line about the events that programs have sent in the last 24 hours; none without any."""
    minute = now.replace(second=0, microsecond=0)
    begin = minute - timedelta(minutes=RATE_MINUTES - 1)
    rows = IngestCount.objects.filter(project=project, minute__gt=now - timedelta(days=1)).values("outcome")
    outcomes = {row["outcome"]: row for row in rows.annotate(count=Sum("count"), last=Max("last_at"))}
    if not outcomes:
        return
    recent = IngestCount.objects.filter(project=project, minute__gte=begin, outcome=ACCEPTED)
    minutes = (now - begin).total_seconds() / 60
    rate = (recent.aggregate(count=Sum("count"))["count"] or 0) / minutes
    rejected = sum(row["count"] for name, row in outcomes.items() if name not in NOT_REFUSED)
    last = max(row["last"] for row in outcomes.values())
    text = f"{rate:,.0f} events/min, last {format_duration(database_clock.seconds_between(last, now))} ago"
    if rejected:
        text += f"; {rejected:,} rejected in 24 hours"
    yield SiteLine("Events received", text, is_concern=bool(rejected))


def still_lines(project: Project, now: datetime) -> Iterator[SiteLine]:
    """Yield the lines that an open page does not update: about sinks and daily budgets. Two queries."""
    sinks = list(with_health(Sink.objects.filter(project=project).order_by("name"))[:MAX_SINKS])
    if sinks:
        yield _sinks(sinks)
    try:
        limits = budgets.day_limits(project.settings)
    except budgets.InvalidBudget as error:
        yield SiteLine("Daily budgets", f"cannot be read: {error}", is_concern=True)
        return
    if limits:
        midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        tokens, cost = used_since(project.pk, midnight)
        used = {Budget.TOKENS_PER_DAY: Decimal(tokens), Budget.COST_PER_DAY: cost}
        nearly = budgets.nearly_exhausted(limits, used)
        for budget, limit in limits.items():
            text = budgets.describe(budget, used[budget], limit).replace(" by the project today", "")
            yield SiteLine("Budget today", text, budget in nearly, float(min(used[budget], limit)), float(limit))


def _sinks(sinks: list[Sink]) -> SiteLine:
    """Return the line about the sinks, which names the worst one."""
    if any(sink.is_paused for sink in sinks):
        return SiteLine("Sinks", "paused: the telemetry of the project is off")
    behind = [(lag_s(sink), sink) for sink in sinks if sink.is_enabled]
    late = [(lag, sink) for lag, sink in behind if lag]
    off = [sink for sink in sinks if sink.disabled_reason]
    if off:
        return SiteLine("Sinks", f"{clean(off[0].name)} was switched off after failures", is_concern=True)
    if late:
        lag, sink = max(late, key=lambda pair: pair[0])
        return SiteLine("Sinks", f"{clean(sink.name)} is {format_duration(lag)} behind", is_concern=True)
    return SiteLine("Sinks", f"{len(behind)} of {len(sinks)} switched on, all up to date")


#: Maximum entries that need a person, and running runs.
MAX_NEEDS, MAX_RUNNING = 8, 8


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show the start page. For a project without runs, show how to create the first run."""
    entry = enter(principal_of(request), project, Action.READ)
    owner = entry.project
    watch = commands.watch(owner) if Action.OPERATE in entry.actions else ""
    context = {**project_context(entry, "overview"), "watch": watch}
    if not _has_runs(owner):
        steps = commands.first_steps(owner, request.build_absolute_uri("/").rstrip("/"))
        return render(request, "runs/overview/empty.html", {**context, "steps": steps})
    context |= _live(entry)
    return render(request, "runs/overview/overview.html", {**context, **_sums(owner)})


@require_safe
def live(request: HttpRequest, project: str) -> HttpResponse:
    """Return the parts that change on an open page, as a fragment.

    With `empty`, the open page is that of a project without runs: reload it once there is a run.
    """
    entry = enter(principal_of(request), project, Action.READ)
    if "empty" in request.GET:
        return HttpResponse(status=204, headers={"HX-Refresh": "true"} if _has_runs(entry.project) else {})
    context = {**project_context(entry, "overview"), **_live(entry)}
    return render(request, "runs/overview/_changes.html", context)


@require_POST
def start_demo(request: HttpRequest, project: str) -> HttpResponse:
    """Create the demo agent in the project, start a run of it, and redirect to the run."""
    principal = principal_of(request)
    owner = project_for(principal, project, Action.CONFIGURE)
    try:
        run = demo.start_one(principal, owner)
    except Refusal as refusal:
        messages.error(request, f"Not started: {refusal}.")
        return see_other("runs:overview", owner.slug)
    return see_other("runs:detail", run.pk)


def _has_runs(project: Project) -> bool:
    """Return whether the project has a run or a flow run. A flow run may have no runs."""
    return any(rows.objects.filter(project=project).exists() for rows in (AgentRun, FlowRun))


def _live(entry: EnteredProject) -> dict[str, Any]:
    """Return the parts that change on an open page. The number of queries does not depend on the number of rows."""
    project, now = entry.project, database_clock.now()
    running = AgentRun.objects.filter(project=project, status=RunStatus.RUNNING)
    newest = read(listed_runs().filter(project=project, status=RunStatus.RUNNING)[:MAX_RUNNING])
    may_decide = Action.APPROVE in entry.actions
    return {
        "needs": [entry_of(need, may_decide=may_decide) for need in needs([project.pk], limit=MAX_NEEDS)],
        "need_counts": count_of(project.pk),
        "may_decide": may_decide,
        "days": FAILED_FOR.days,
        "running": markup_of(rows_of(newest, now), boxes=False),
        "running_count": label_of(running[:100].count()),
        "running_url": f"{reverse('runs:list', args=[project.slug])}?status=running",
        "lines": list(live_lines(project, now)),
    }


def _sums(project: Project) -> dict[str, Any]:
    """Return the totals of the last 24 hours and 7 days, and two charts."""
    now = database_clock.now()
    window = RunWindow.read(project, RANGES["7d"], now)
    ids = usage.newest_ended(project, now - window.range.length)
    return {
        "totals": [
            total_row("Last 24 hours", window.within(RANGES["24h"].length)),
            total_row("Last 7 days", window.runs),
        ],
        "agents": agent_rows(window.runs),
        "flows": flow_rows(ended_by_flow(project, now - window.range.length)),
        "models": model_rows(ids),
        "model_runs": len(ids) if len(ids) == usage.MAX_ENDED_RUNS else 0,
        "charts": charts_of(window),
        "window": window,
        "still_lines": list(still_lines(project, now)),
        "as_of": now,
    }


#: Maximum number of listed projects.
MAX_PROJECTS = 200


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """Redirect to the only visible project, or list the projects, first the ones that need a person. Two queries."""
    visible = projects_for(principal_of(request)).filter(archived_at=None)
    projects = list(visible.order_by("name", "pk")[:MAX_PROJECTS])
    if not projects:
        return render(request, "no_project.html")
    if len(projects) == 1:
        return redirect("runs:overview", projects[0].slug)
    counts = need_counts([project.pk for project in projects])
    rows = [(project, counts.get(project.pk, NeedCounts())) for project in projects]
    rows.sort(key=lambda row: -row[1].total)
    return render(request, "runs/overview/home.html", {"projects": projects, "rows": rows, "most": MAX_PROJECTS})
