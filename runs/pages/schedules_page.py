"""The schedules of a project, and the page of one schedule with its starts and its actions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from uuid_utils.compat import uuid7

from agentops.accounts.access import Action, enter
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import id_of, see_other
from agentops.base.http.methods import require_POST, require_safe
from agentops.base.refusals import InvalidQuery, Refusal
from runs.actions.schedules import starting
from runs.actions.schedules.schedule_changes import (
    MAX_SCHEDULES,
    change_schedule,
    next_times,
    problem_of,
    remove_schedule,
    run_prepared,
    schedule_of,
    schedules_of,
    timing_values,
)
from runs.actions.schedules.schedule_lists import (
    describe_outcome,
    describe_rules,
    describe_timing,
    last_starts,
    starts_of,
)
from runs.models import Schedule, ScheduleStart
from runs.pages.forms.form_fields import json_of
from runs.pages.forms.start import create_once
from runs.pages.page_parts import enter_project, parse_enabled, parse_uuid, project_context, split_page
from timeline.display import clean

PAGE_SIZE = 50


@dataclass(frozen=True)
class ListedSchedule:
    """A schedule in the list."""

    schedule: Schedule
    name: str
    timing: str
    problem: str
    next_at: datetime | None
    last: ScheduleStart | None
    #: The token of the form that starts a run, so that a second click does not start another one.
    token: UUID


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show the schedules by name."""
    entry = enter(principal_of(request), project, Action.READ)
    schedules = schedules_of(entry.project)
    last = last_starts(schedules)
    context = {
        **project_context(entry, "schedules"),
        "rows": [_row(schedule, last.get(schedule.pk)) for schedule in schedules],
        "is_full": len(schedules) >= MAX_SCHEDULES,
        "max_schedules": MAX_SCHEDULES,
    }
    return render(request, "runs/schedules/schedules.html", context)


@require_safe
def detail(request: HttpRequest, project: str, schedule_id: UUID) -> HttpResponse:
    """Show a schedule with its next due times and its newest starts; with `before`, older ones."""
    entry = enter(principal_of(request), project, Action.READ)
    schedule = schedule_of(entry.project, schedule_id)
    starts = starts_of(schedule)
    if before := id_of(request.GET.get("before", ""), "before"):
        starts = starts.filter(pk__lt=before)
    page, has_more = split_page(starts, PAGE_SIZE)
    context = {
        **project_context(entry, "schedules"),
        "schedule": schedule,
        "name": clean(schedule.name),
        "created_by": clean(schedule.created_by),
        "timing": describe_timing(schedule),
        "rules": describe_rules(schedule),
        "problem": problem_of(schedule),
        "next_times": _local_times(schedule),
        "prompt": clean(schedule.prompt),
        "inputs": clean(json_of(schedule.inputs)),
        "starts": [(start, clean(describe_outcome(start))) for start in page],
        "older": page[-1].pk if has_more else None,
        "before": before,
        "token": uuid7(),
    }
    return render(request, "runs/schedules/schedule.html", context)


def _row(schedule: Schedule, last: ScheduleStart | None) -> ListedSchedule:
    times = next_times(schedule)
    return ListedSchedule(
        schedule,
        clean(schedule.name),
        describe_timing(schedule),
        problem_of(schedule),
        times[0] if times else None,
        last,
        uuid7(),
    )


def _local_times(schedule: Schedule) -> list[tuple[datetime, str]]:
    """Return the next due times, each with its local time in the time zone of a cron expression; empty without one."""
    values = timing_values(schedule)
    zone = values["time_zone"]
    return [
        (at, f"{at.astimezone(ZoneInfo(zone)):%a %d %b %Y, %H:%M} {zone}" if values["cron"] else "")
        for at in next_times(schedule)
    ]


@require_POST
def switch(request: HttpRequest, project: str, schedule_id: UUID) -> HttpResponse:
    """Enable or disable a schedule: `enabled` is "yes" or "no"."""
    principal, entry = enter_project(request, project, Action.OPERATE)
    enables = parse_enabled(request)
    change_schedule(entry.project, schedule_id, {"is_enabled": enables}, by=principal)
    messages.success(request, "Schedule resumed." if enables else "Schedule paused. It starts no runs.")
    return see_other("runs:schedule", entry.project.slug, schedule_id)


@require_POST
def start_now(request: HttpRequest, project: str, schedule_id: UUID) -> HttpResponse:
    """Start a run now. Submitting the same form again opens the run that it started."""
    principal, entry = enter_project(request, project, Action.OPERATE)
    schedule = schedule_of(entry.project, schedule_id)
    token = parse_uuid(request.POST.get("token", ""))
    if token is None:
        raise InvalidQuery("token must be that of the form: reload the page")
    try:
        inputs = starting.prepare(schedule.pk)
        run_id = create_once(request, token, lambda: run_prepared(entry.project, schedule.pk, inputs, by=principal))
    except Refusal as refusal:
        messages.error(request, f"No run was started: {clean(str(refusal))}.")
        return see_other("runs:schedule", entry.project.slug, schedule_id)
    return see_other("runs:detail" if schedule.agent else "runs:flow-run", run_id)


@require_POST
def remove(request: HttpRequest, project: str, schedule_id: UUID) -> HttpResponse:
    """Remove a schedule with the list of its starts."""
    principal, entry = enter_project(request, project, Action.OPERATE)
    remove_schedule(entry.project, schedule_id, by=principal)
    messages.success(request, "Schedule removed. Its runs stay.")
    return see_other("runs:schedules", entry.project.slug)
